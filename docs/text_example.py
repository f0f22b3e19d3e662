"""Write docs/text_example.html: explanations of sentences that the model has not seen.

The model is fitted to 23,703 rated texts, which are read from the folder GPX_SCALE_DATA.
"""

from pathlib import Path

from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import make_pipeline

from gpx_scale import GPXRegressor, datasets, text

SENTENCES = [
    "A warm, funny film with a wonderful cast and an honest heart.",
    "The plot is dull, the jokes are stupid, and the ending is a waste of a great idea.",
    "Not the best camera, but the battery lasts and the pictures look good.",
    "The screen broke after two weeks and the support was terrible.",
    "The report warns of war, poverty and a failed economy.",
    "Happy birthday to my beautiful sister! Love you!",
]

if __name__ == "__main__":
    data = datasets.load_vader()
    model = GPXRegressor(
        x_transformer=make_pipeline(TfidfVectorizer(min_df=2), TruncatedSVD(256, random_state=0)),
        z_transformer=CountVectorizer(binary=True, min_df=5, max_df=0.05, stop_words="english"),
        random_state=0,
    ).fit(data.texts, data.y)
    page = text.highlighted_page(
        model.explain(SENTENCES), SENTENCES, "Ratings from -4 to 4, and the words behind them"
    )
    Path(__file__).with_name("text_example.html").write_text(page)
