"""gradleak: how much of my training data can be read back out of the update I send?"""

__version__ = "0.1.0"
