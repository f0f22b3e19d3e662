"""
Words shaded where they stand
=============================

With this page you can shade the words of a text by their contributions. The model predicts
whether a docstring comes from scikit-learn (+1) or from scipy (-1); both are on every machine
that runs this. The kernel compares LSA vectors of the texts, and their words explain.
"""

# sphinx_gallery_thumbnail_number = 2
import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from gpx_scale import GPXRegressor
from gpx_scale.cli.demos import docstrings
from gpx_scale.plots import plot_summary, plot_text

documents, y = docstrings()
kept, held = train_test_split(np.arange(len(y)), train_size=600, test_size=150, random_state=0)
model = GPXRegressor(
    x_transformer=make_pipeline(TfidfVectorizer(min_df=2), TruncatedSVD(64, random_state=0)),
    z_transformer=CountVectorizer(binary=True, min_df=3, stop_words="english"),
    random_state=0,
).fit([documents[i] for i in kept], y[kept])
asked = [documents[i] for i in held]
explanation = model.explain(asked)
print(
    f"{len(kept)} texts were fitted. The sign is right for "
    f"{np.mean(np.sign(explanation.prediction) == y[held]):.0%} of {len(held)} others."
)

# %%
# These are the texts with the most words of which the model is certain, one from each package.
# Vermilion speaks for scikit-learn and blue for scipy. Underlined words are more than two
# standard deviations from 0.

sure = (abs(explanation.contributions) > 2 * explanation.contributions_std).sum(axis=1)


def show(side):
    """Draw the text of one package that has the most certain words."""
    i = int(np.argmax(np.where(y[held] == side, sure, -1)))
    print(
        f"{side:+}: predicted {explanation.prediction[i]:.2f} ± {explanation.prediction_std[i]:.2f}"
    )
    plot_text(asked[i], explanation.top(i, k=100), strongest=0.5)
    plt.show()


show(+1)

# %%
show(-1)

# %%
# The last picture shows the words that matter most over all these texts. A sparse Z has points
# only for texts that have the word.

plot_summary(explanation, k=12)
plt.show()
