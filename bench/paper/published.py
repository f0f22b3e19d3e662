"""The paper's own numbers: tables 1 to 4 of Yoshikawa and Iwata, with means and standard
deviations over its five splits.
"""

from __future__ import annotations

TABULAR = ("Digits", "Abalone", "Diabetes", "Boston", "Fish", "Wine")

SIZES = {
    "Digits": (1797, 64),
    "Abalone": (4177, 10),
    "Diabetes": (442, 10),
    "Boston": (506, 13),
    "Fish": (908, 6),
    "Wine": (6497, 11),
    "Paper": (399, 2990),
    "Drug": (3989, 2429),
}

# {measure: (columns, {set: "mean sd" of each column})}. A cell is ">..." if the paper gives only
# a bound.
_TABLES = {
    "mse": (
        ("GPX", "Localized", "Network", "ARD", "Lasso", "Ridge", "GPR"),
        {
            "Digits": (
                "0.078 0.010, 0.135 0.042, 0.163 0.033, 0.258 0.371, "
                "0.399 0.028, 0.398 0.024, 0.074 0.008"
            ),
            "Abalone": (
                "0.428 0.036, 0.519 0.023, 0.534 0.016, 0.428 0.026, "
                "0.477 0.052, 0.477 0.053, 0.427 0.034"
            ),
            "Diabetes": (
                "0.493 0.041, 0.610 0.062, 0.667 0.091, 0.492 0.042, "
                "0.504 0.039, 0.503 0.040, 0.490 0.048"
            ),
            "Boston": (
                "0.116 0.053, 0.208 0.070, 0.233 0.062, 0.115 0.047, "
                "0.293 0.078, 0.284 0.081, 0.116 0.052"
            ),
            "Fish": (
                "0.370 0.061, 0.479 0.051, 0.523 0.054, 0.376 0.065, "
                "0.437 0.055, 0.437 0.055, 0.375 0.066"
            ),
            "Wine": (
                "0.579 0.048, 0.715 0.024, 0.908 0.051, 0.628 0.053, "
                "0.723 0.039, 0.712 0.044, 0.605 0.046"
            ),
            "Paper": (
                "0.806 0.054, 0.981 0.058, 0.919 0.088, 0.815 0.092, "
                "0.821 0.047, 0.936 0.057, 0.762 0.087"
            ),
            "Drug": (
                "0.835 0.027, 1.011 0.027, 1.072 0.019, 0.845 0.033, "
                "0.875 0.037, 0.911 0.036, 0.844 0.033"
            ),
        },
    ),
    "faithfulness": (
        ("GPX", "GPR+LIME", "GPR+SHAP", "KL", "Localized", "Network", "ARD"),
        {
            "Digits": (
                "0.888 0.003, 0.384 0.038, 0.651 0.013, 0.757 0.022, "
                "0.300 0.029, 0.352 0.021, -0.059 0.012"
            ),
            "Abalone": (
                "0.898 0.017, 0.775 0.024, 0.914 0.007, 0.551 0.024, "
                "0.432 0.042, 0.497 0.033, 0.288 0.107"
            ),
            "Diabetes": (
                "0.966 0.008, 0.844 0.027, 0.928 0.010, 0.558 0.050, "
                "0.340 0.074, 0.365 0.086, 0.593 0.027"
            ),
            "Boston": (
                "0.898 0.026, 0.693 0.035, 0.869 0.009, 0.518 0.080, "
                "0.562 0.075, 0.525 0.039, 0.195 0.042"
            ),
            "Fish": (
                "0.902 0.016, 0.672 0.043, 0.826 0.033, 0.428 0.012, "
                "0.480 0.046, 0.394 0.090, 0.190 0.067"
            ),
            "Wine": (
                "0.749 0.027, 0.575 0.009, 0.734 0.008, 0.234 0.028, "
                "0.270 0.013, 0.321 0.017, -0.006 0.019"
            ),
        },
    ),
    "stability": (
        ("GPX", "GPR+LIME", "GPR+SHAP", "KL", "Localized", "Network"),
        {
            "Digits": (
                "1.153 0.015, 2.410 0.079, 2.274 0.110, 2.058 1.043, 1.996 0.098, 1.989 0.222"
            ),
            "Abalone": (
                "3.094 0.249, 11.809 0.453, 11.625 0.362, 4.485 0.911, 15.439 1.193, 15.772 0.948"
            ),
            "Diabetes": (
                "1.164 0.065, 1.870 0.119, 1.400 0.147, 1.401 0.113, 2.833 0.085, 2.693 0.123"
            ),
            "Boston": (
                "1.452 0.081, 4.180 0.426, 2.176 0.304, 2.956 0.221, 3.794 1.215, 3.467 0.799"
            ),
            "Fish": "1.497 0.075, >1e5, 1.634 0.057, 3.289 0.536, 5.746 0.563, 5.625 0.591",
            "Wine": "1.531 0.113, >1e6, >1e5, 5.255 0.906, 3.989 0.306, 4.033 0.282",
            "Paper": "0.004 0.002, 5.535 0.161, 4.548 0.098, 0.026 0.052, 6.482 0.161, 6.986 0.442",
            "Drug": (
                "0.067 0.014, 16.976 0.399, 12.037 0.513, 11.547 0.265, 16.908 0.532, 17.341 0.589"
            ),
        },
    ),
}

# Seconds of training and of prediction on Digits, from table 4.
TIMES = {
    "GPX": (5.74, 24.57),
    "GPR+LIME": (5.53, 155.54),
    "GPR+SHAP": (5.76, 2643.06),
    "KL": (6.57, 156.19),
    "Localized": (105.84, 1.59),
    "Network": (106.16, 1.61),
    "ARD": (6.18, 0.27),
}

COLUMNS = {measure: columns for measure, (columns, _) in _TABLES.items()}


def _cell(text: str) -> tuple[float, float] | str:
    """Return mean and standard deviation, or the text if the paper gives only a bound."""
    text = text.strip()
    if text.startswith(">"):
        return text
    mean, sd = text.split()
    return float(mean), float(sd)


# {(measure, set, method): (mean, sd), or a text}.
TABLE = {
    (measure, name, method): _cell(text)
    for measure, (columns, rows) in _TABLES.items()
    for name, line in rows.items()
    for method, text in zip(columns, line.split(","), strict=True)
}
