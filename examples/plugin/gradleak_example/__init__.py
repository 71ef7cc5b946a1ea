"""Three small additions to gradleak, each in one file."""
