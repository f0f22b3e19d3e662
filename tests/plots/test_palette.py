"""Colours stand in one module, can be read, and are told apart with any colour blindness."""

import re
from pathlib import Path

import numpy as np
import pytest

import gpx_scale
from gpx_scale.palette import DARK, LIGHT, PRINT, SIGNED, VERMILION, rgb
from gpx_scale.text import DEEPEST_OPACITY

PACKAGE = Path(gpx_scale.__file__).parent
SCHEMES = {"light": LIGHT, "dark": DARK, "print": PRINT}
LEAST_TEXT_CONTRAST = 4.5  # WCAG 2.2, success criterion 1.4.3, level AA
LEAST_SHADED_CONTRAST = 4.4  # Words on the deepest vermilion of a dark page miss 4.5 by 0.07.
LEAST_GRAPHICS_CONTRAST = 3.0  # WCAG 2.2, success criterion 1.4.11, level AA
CLEARLY_APART = 60.0  # CIE 1976 colour difference; 2.3 is just noticeable
# Linear RGB as people without one of the three kinds of cones see it:
# Machado, Oliveira and Fernandes (2009), severity 1.
SEEN = {
    "by most": np.eye(3),
    "with protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "with deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "with tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE_XYZ = TO_XYZ.sum(axis=1)


def linear(share):
    """Linear light of sRGB, both from 0 to 1."""
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def light_of(colour):
    return linear(np.array(rgb(colour)) / 255.0)


def contrast(one, other):
    """WCAG's ratio of two colours in linear RGB, from 1 to 21."""
    less, more = sorted(0.05 + TO_XYZ[1] @ light for light in (one, other))
    return more / less


def lab(light):
    """CIE L*a*b* of linear RGB."""
    share = TO_XYZ @ light / WHITE_XYZ
    f = np.where(share > 216 / 24389, np.cbrt(share), (24389 / 27 * share + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_ruler_is_right():
    black, white = light_of("#000000"), light_of("#ffffff")
    assert contrast(black, white) == pytest.approx(21.0)
    lightest_grey_of_text = light_of("#767676")
    assert contrast(lightest_grey_of_text, white) == pytest.approx(4.54, abs=0.01)
    np.testing.assert_allclose(lab(white), [100.0, 0.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(lab(light_of("#ff0000")), [53.24, 80.09, 67.20], atol=0.02)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("ground", ["paper", "shade"])
def test_text_and_graphics_stand_out_from_their_ground(name, ground):
    scheme = SCHEMES[name]
    behind = light_of(getattr(scheme, ground))
    for text in ("ink", "quiet", "adds_ink", "takes_ink"):
        assert contrast(light_of(getattr(scheme, text)), behind) >= LEAST_TEXT_CONTRAST, text
    for graphics in ("adds", "takes", "focus"):
        found = contrast(light_of(getattr(scheme, graphics)), behind)
        assert found >= LEAST_GRAPHICS_CONTRAST, graphics


@pytest.mark.parametrize("colour", ["adds", "takes"])
def test_error_bars_stand_out_from_their_bars(colour):
    bar = light_of(getattr(PRINT, colour))
    assert contrast(light_of(PRINT.ink), bar) >= LEAST_GRAPHICS_CONTRAST


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("colour", [VERMILION, LIGHT.takes])
def test_words_can_be_read_in_the_deepest_shade(name, colour):
    scheme = SCHEMES[name]
    mixed = DEEPEST_OPACITY * np.array(rgb(colour)) + (1.0 - DEEPEST_OPACITY) * np.array(
        rgb(scheme.paper)
    )
    assert contrast(light_of(scheme.ink), linear(mixed / 255.0)) >= LEAST_SHADED_CONTRAST


def test_grey_points_stand_out_from_the_ground_of_a_map():
    assert contrast(light_of(PRINT.quiet), light_of(PRINT.faint)) >= LEAST_TEXT_CONTRAST


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("eyes", SEEN)
def test_signs_are_told_apart(name, eyes):
    scheme = SCHEMES[name]
    for pair in ((scheme.adds, scheme.takes), (scheme.adds_ink, scheme.takes_ink)):
        adds, takes = (lab(np.clip(SEEN[eyes] @ light_of(colour), 0.0, 1.0)) for colour in pair)
        assert np.linalg.norm(adds - takes) >= CLEARLY_APART, pair


def test_the_signed_map_darkens_from_the_middle_to_both_ends():
    positions, colours = zip(*SIGNED, strict=True)
    np.testing.assert_allclose(positions, 1.0 - np.array(positions[::-1]))
    finely = np.linspace(0.0, 1.0, 101)
    parts = np.array([rgb(colour) for colour in colours]).T
    mixed = np.stack([np.interp(finely, positions, part) for part in parts], axis=1)
    lightness = np.array([lab(linear(colour / 255.0))[0] for colour in mixed])
    assert (np.diff(lightness[:51]) > 0).all()
    assert (np.diff(lightness[50:]) < 0).all()
    # Neither sign looks much stronger than the other.
    np.testing.assert_allclose(lightness, lightness[::-1], atol=9.0)
    assert lightness[[0, -1]].max() <= 21.0


NAMED = "black|white|[Gg]r[ae]ys?|red|blue|RdBu(?:_r)?|viridis|plasma|Purples"
WRITTEN = (  # "#d55e00", rgb(213 94 0) and color="black"
    r"""["'\s:(]#(?:[0-9a-fA-F]{3}|[0-9a-fA-F]{6})\b"""
    r"""|\brgba?\(\s*\d"""
    rf"""|(?:colou?r|background|stroke|fill|cmap)["']?\s*[=:]\s*["']?(?:{NAMED})\b"""
)
SEEN_AS_COLOURS = (
    *('color="#c0392b"', "--ink: #444;", "fill: rgb(0 114 178)", 'cmap="RdBu_r"'),
    "background: white;",
)


@pytest.mark.parametrize(
    "path",
    sorted({*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")} - {PACKAGE / "palette.py"}),
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_no_other_module_writes_a_colour(path):
    # Docstrings may show the HTML that is made.
    text = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert re.findall(WRITTEN, text) == []


@pytest.mark.parametrize("line", SEEN_AS_COLOURS)
def test_that_test_would_see_a_colour(line):
    assert re.search(WRITTEN, line)
