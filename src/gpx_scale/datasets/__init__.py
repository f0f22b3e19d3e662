"""The data sets of the paper and of the benchmarks, by name, and synthetic ones.

    with scikit-learn     digits, diabetes
    downloaded            abalone, boston, california, fish, king_county, paper, wine
    from your own file    drug
    from your own folder  berlin, bike, georgia, imdb, kin40k, protein, vader
    synthetic             synth2, synth10, synth_ard, synth_multiscale, synth_semi, synth_additive

`load_<name>()` looks for a file in the folder that the environment variable GPX_SCALE_DATA
names, then in the cache (the folder that GPX_SCALE_CACHE names, or the user's cache). Otherwise
it downloads the file from its publisher, compares it with a known digest and keeps it in the
cache. `progress=True` shows a download on stderr; by default it is shown if stderr is a
terminal. If GPX_SCALE_MIRROR is set, it replaces the hosts of the publishers.

>>> data = load_diabetes()
>>> data.X.shape, data.feature_names[:3]
((442, 10), ['age', 'sex', 'bmi'])
"""

from .sources import DataUnavailable
from .synthetic import (
    Additive,
    synth2,
    synth10,
    synth_additive,
    synth_ard,
    synth_multiscale,
    synth_semi,
)
from .tabular import (
    Dataset,
    digit_classes,
    load_abalone,
    load_boston,
    load_california,
    load_diabetes,
    load_digits,
    load_fish,
    load_kin40k,
    load_protein,
    load_wine,
)
from .text_encoders import LSA, SentenceEncoder, bag_of_words, sentence_vectors
from .texts import TextDataset, load_drug, load_imdb, load_paper, load_vader
from .varying_coefficients import Varying, load_berlin, load_bike, load_georgia, load_king_county

__all__ = [
    "LSA",
    "Additive",
    "DataUnavailable",
    "Dataset",
    "SentenceEncoder",
    "TextDataset",
    "Varying",
    "bag_of_words",
    "digit_classes",
    "load_abalone",
    "load_berlin",
    "load_bike",
    "load_boston",
    "load_california",
    "load_diabetes",
    "load_digits",
    "load_drug",
    "load_fish",
    "load_georgia",
    "load_imdb",
    "load_kin40k",
    "load_king_county",
    "load_paper",
    "load_protein",
    "load_vader",
    "load_wine",
    "sentence_vectors",
    "synth2",
    "synth10",
    "synth_additive",
    "synth_ard",
    "synth_multiscale",
    "synth_semi",
]
