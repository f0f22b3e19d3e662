"""All colours of reports, plots and shaded texts.

The two signs of a contribution are vermilion and blue of Okabe and Ito, which people with any
common form of colour blindness tell apart. Ink, paper and greys come in schemes: `LIGHT` and
`DARK` are a report on a screen, `PRINT` is a report on paper and every plot. A test checks
their contrasts.
"""

from __future__ import annotations

from typing import NamedTuple

VERMILION = "#d55e00"
BLUE = "#0072b2"
# Legends name the colours of the two signs by these words.
ADDS_NAME = "vermilion"
TAKES_NAME = "blue"


class Scheme(NamedTuple):
    """The colours of one medium; a report has a CSS variable for each.

    `quiet` colours secondary text, axes at 0 and points without a sign; `rule` lines between
    rows and bars without a sign; `faint` grid lines and the background of maps; `shade` the
    background of a row that is open or under the pointer; `focus` the frame of the element that
    the keyboard acts on. `adds` and `takes` colour bars and points of contributions. `adds_ink`
    and `takes_ink` are these colours for text, darker or lighter so that it can be read on
    `paper`.
    """

    paper: str
    ink: str
    quiet: str
    rule: str
    faint: str
    shade: str
    focus: str
    adds: str
    takes: str
    adds_ink: str
    takes_ink: str


LIGHT = Scheme(
    paper="#fffefb",
    ink="#23211d",
    quiet="#68635a",
    rule="#dcd8cf",
    faint="#eeebe3",
    shade="#f7f4ed",
    focus=BLUE,
    adds=VERMILION,
    takes=BLUE,
    adds_ink="#a54800",
    takes_ink="#00619a",
)
DARK = Scheme(
    paper="#17181b",
    ink="#e5e2da",
    quiet="#a19c92",
    rule="#3a3b40",
    faint="#2a2b2f",
    shade="#1f2024",
    focus="#62b5ea",
    adds=VERMILION,
    takes="#147ebe",
    adds_ink="#f2a061",
    takes_ink="#6bb9ec",
)
PRINT = LIGHT._replace(
    paper="#ffffff",
    ink="#000000",
    quiet="#444444",
    rule="#aaaaaa",
    faint="#dddddd",
    shade="#ffffff",
)

# A colour map is a name of matplotlib's, or pairs of position and colour. The signed one goes
# through the colours of both signs to ends as dark as those of matplotlib's RdBu, so that large
# values differ in lightness too.
ColourMap = str | tuple[tuple[float, str], ...]
SIGNED: ColourMap = (
    (0.0, "#003250"),
    (0.18, BLUE),
    (0.5, "#f7f7f7"),
    (0.82, VERMILION),
    (1.0, "#522200"),
)
SIZES: ColourMap = "viridis"
DEVIATIONS: ColourMap = "plasma"
PIXELS: ColourMap = "Greys"
CERTAINTY: ColourMap = "Purples"


def rgb(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue, each from 0 to 255, of a colour such as "#d55e00"."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue
