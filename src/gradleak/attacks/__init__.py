"""What reads data back out of updates. Nothing here may see the truth: see DESIGN section 2."""

from gradleak.attacks.exact import linear, recursive, subspace
from gradleak.attacks.learned import ridge
from gradleak.attacks.recipes import dlg, gi_gip, grab, gradinversion, hf_gradinv, idlg, ig, lamp, lti, tag

__all__ = [
    "dlg", "gi_gip", "grab", "gradinversion", "hf_gradinv", "idlg", "ig", "lamp", "linear", "lti", "recursive", "ridge",
    "subspace", "tag",
]
