"""Bags of words, from hundreds of documents to 50,000: `make bench CASE=text`.

It takes ten minutes on two cores, with data from the folder that GPX_SCALE_DATA names. Each
case runs in a process of its own, so that its peak memory can be measured, and compiles before
the clock runs. x is the LSA of tf-idf with 256 components, learnt on the training texts only.
y is standardised, so an error of 1 is that of the mean.
"""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sp

from measure import in_turn, run_cases

THREADS = 2
COMPONENTS = 256


def split(data, held_out):
    """Return training and test texts, with y standardised by the training part."""
    order = np.random.RandomState(0).permutation(len(data.y))
    cut = len(order) - round(held_out * len(order))
    texts = np.array(data.texts, dtype=object)
    y = (data.y - data.y[order[:cut]].mean()) / data.y[order[:cut]].std()
    return texts[order[:cut]], y[order[:cut]], texts[order[cut:]], y[order[cut:]]


def vectors(train, test, components=COMPONENTS):
    """Return the LSA of training and test texts."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    lsa = make_pipeline(TfidfVectorizer(min_df=2), TruncatedSVD(components, random_state=0))
    return lsa.fit_transform(train), lsa.transform(test)


def words(train, test, **more):
    """Return the binary bags of words of training and test texts."""
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(binary=True, stop_words="english", **more)
    return sp.csr_array(counter.fit_transform(train)), sp.csr_array(counter.transform(test))


def compiled():
    """Compile what fits and explanations use, before the clock runs."""
    from gpx_scale import GPXRegressor

    random = np.random.RandomState(0)
    Z = sp.csr_array((random.rand(300, 30) < 0.1).astype(float))
    for solver in ("exact", "cg"):
        GPXRegressor(
            solver=solver,
            random_state=0,
            max_iter=2,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(random.randn(300, 3), random.randn(300), Z).explain(random.randn(300, 3), Z)


def timed(function):
    """Return the value of a call and its seconds."""
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def ridge_error(Z, y, Zq, yq):
    """Return the error of ridge regression on the same bag of words.

    Its penalty is chosen on a fifth of the training rows.
    """
    from sklearn.linear_model import Ridge

    cut = 4 * len(y) // 5

    def error(penalty, rows, queries, targets):
        model = Ridge(penalty, solver="sparse_cg", tol=1e-6).fit(sp.csr_matrix(Z[:rows]), y[:rows])
        return float(np.mean((model.predict(sp.csr_matrix(queries)) - targets) ** 2))

    best = min(
        (3.0, 10.0, 30.0, 100.0, 300.0), key=lambda penalty: error(penalty, cut, Z[cut:], y[cut:])
    )
    return error(best, len(y), Zq, yq)


def explained(X, y, Z, Xq, yq, Zq, memory_limit):
    """Return the numbers of a complete fit on pairs, and of test texts explained with standard
    deviations.
    """
    from gpx_scale import GPXRegressor

    compiled()
    model, fitted = timed(
        lambda: GPXRegressor(
            random_state=0,
            n_jobs=THREADS,
            memory_limit=memory_limit,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y, Z)
    )
    explanation, explaining = timed(lambda: model.explain(Xq, Zq))
    covered = np.abs(explanation.prediction - yq) < 2.0 * explanation.prediction_std
    return {
        "n": len(y),
        "d": Z.shape[1],
        "form": model._plan.settings.form,
        "fit": fitted,
        "queries": len(yq),
        "explain": explaining,
        "mse": float(np.mean((explanation.prediction - yq) ** 2)),
        "covered": float(covered.mean()),
        "solution": model.fit_report_.solution,
        "excess": model.posterior_.excess,
        "hyperparameters": model.hyperparameters_,
    }


def vader():
    """Fit 18,962 short texts, beside ridge regression on the same words and GPR on x alone."""
    from gpx_scale import GPXRegressor, datasets

    train, y, test, yq = split(datasets.load_vader(), 0.2)
    X, Xq = vectors(train, test)
    Z, Zq = words(train, test, max_df=0.05)
    found = explained(X, y, Z, Xq, yq, Zq, "4GB")
    found["ridge"] = ridge_error(Z, y, Zq, yq)
    ones = np.ones((len(y), 1)), np.ones((len(yq), 1))
    gpr, seconds = timed(
        lambda: GPXRegressor(
            random_state=0,
            sigma_w=0.0,
            n_jobs=THREADS,
            memory_limit="4GB",
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y, ones[0])
    )
    found["gpr"], found["gpr_seconds"] = (
        float(np.mean((gpr.predict(Xq, ones[1]) - yq) ** 2)),
        seconds,
    )
    return found


def imdb():
    """Fit 45,000 long texts, and explain 1,000 of the others.

    All 50,000 are then fitted at these hyperparameters, to measure the memory.
    """
    from gpx_scale import GPXRegressor, datasets

    data = datasets.load_imdb()
    train, y, test, yq = split(data, 0.1)
    X, Xq = vectors(train, test)
    Z, Zq = words(train, test, max_df=0.02, min_df=5)
    found = explained(X, y, Z, Xq[:1000], yq[:1000], Zq[:1000], "12GB")
    found["ridge"] = ridge_error(Z, y, Zq[:1000], yq[:1000])
    everything = np.vstack([X, Xq]), np.concatenate([y, yq]), sp.csr_array(sp.vstack([Z, Zq]))
    model = GPXRegressor(
        optimizer=None,
        random_state=0,
        n_jobs=THREADS,
        memory_limit="12GB",
        **found["hyperparameters"],
    )
    model, found["all_seconds"] = timed(lambda: model.fit(*everything[:2], everything[2]))
    found["all"], found["all_form"] = len(everything[1]), model._plan.settings.form
    return found


def few_texts(data):
    """Return 4,000 texts for training and 1,000 for testing, as vectors and words."""
    train, y, test, yq = split(data._replace(texts=data.texts[:5000], y=data.y[:5000]), 0.2)
    (X, Xq), (Z, Zq) = vectors(train, test), words(train, test, min_df=4)
    return X, y, Z, Xq, yq, Zq


def n4000():
    """Compare a sparse Z with a dense one on 4,000 texts.

    The dense model explains 8 texts, and its time is extrapolated, because the cost is linear
    in their number.
    """
    from gpx_scale import GPXRegressor, datasets

    X, y, Z, Xq, yq, Zq = few_texts(datasets.load_vader())
    compiled()
    found = {"n": len(y), "d": Z.shape[1], "queries": len(yq)}
    sparse, found["fit"] = timed(
        lambda: GPXRegressor(
            random_state=0,
            n_jobs=THREADS,
            standardize=False,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y, Z)
    )
    a, found["explain"] = timed(lambda: sparse.explain(Xq, Zq))
    dense, found["dense_fit"] = timed(
        lambda: GPXRegressor(
            random_state=0,
            n_jobs=THREADS,
            standardize=False,
            kernel="rbf",
            fit_intercept=False,
            weights="shared",
        ).fit(X, y, Z.toarray())
    )
    b, some = timed(lambda: dense.explain(Xq[:8], Zq[:8].toarray()))
    found["dense_explain"] = some * len(yq) / 8
    rows, cols = Zq[:8].nonzero()
    found["apart"] = float(np.abs(a[:8].weights_std.data / b.weights_std[rows, cols] - 1.0).max())
    return found


def n4000_memory():
    """Run the sparse half of `n4000` alone, to measure its peak memory."""
    from gpx_scale import GPXRegressor, datasets

    X, y, Z, Xq, _, Zq = few_texts(datasets.load_vader())
    GPXRegressor(
        random_state=0, n_jobs=THREADS, kernel="rbf", fit_intercept=False, weights="shared"
    ).fit(X, y, Z).explain(Xq, Zq)
    return {"theirs": 4.0 * Z.shape[1] * len(y) ** 2}


def paper():
    """Return the errors over five splits of the paper's 399 reviews.

    x is LSA. z is binary words that at least five texts have, or tf-idf.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    from gpx_scale import PAPER, GPXRegressor, datasets

    data = datasets.load_paper()
    errors = {"binary": [], "tfidf": []}
    for seed in range(5):
        order = np.random.RandomState(seed).permutation(len(data.y))
        texts = np.array(data.texts, dtype=object)[order]
        y = ((data.y - data.y.mean()) / data.y.std())[order]
        cut = 4 * len(y) // 5
        X, Xq = vectors(texts[:cut], texts[cut:], 64)
        for name, counter in (
            ("binary", CountVectorizer(binary=True, min_df=5)),
            ("tfidf", TfidfVectorizer(min_df=2)),
        ):
            Z, Zq = counter.fit_transform(texts[:cut]), counter.transform(texts[cut:])
            model = GPXRegressor(**PAPER, random_state=0).fit(X, y[:cut], Z)
            errors[name].append(float(np.mean((model.predict(Xq, Zq) - y[cut:]) ** 2)))
    return {name: [float(np.mean(some)), float(np.std(some))] for name, some in errors.items()}


def products():
    """Compare products of C, stored on pairs, with a copy of as many bytes as they read."""
    from gpx_scale import datasets, kernels
    from gpx_scale.data.features import SparseFeatures
    from gpx_scale.data.inputs import TrainingRows
    from gpx_scale.linalg.pairs import Pairs
    from gpx_scale.linalg.sparse_covariance import PairCovariance
    from gpx_scale.model.hyperparameters import Hyperparameters
    from gpx_scale.runtime.session import Session

    found, params = {}, Hyperparameters.of(kernels.RBF(1.0, 16.0), 0.1, 0.5)
    for name, more in (("vader", {"max_df": 0.05}), ("imdb", {"max_df": 0.02, "min_df": 5})):
        data = getattr(datasets, f"load_{name}")()
        Z, _ = words(data.texts, data.texts[:1], **more)
        n = Z.shape[0]
        inputs = TrainingRows(np.random.RandomState(0).randn(n, 8), SparseFeatures.of(Z), data.y)
        V = np.random.RandomState(1).randn(n, 16)
        for jobs in (1, THREADS):
            with Session.open(jobs) as session:
                arguments = inputs, params.kernel, session
                pairs, listing = timed(lambda arguments=arguments: Pairs.of(*arguments))
                C = PairCovariance(inputs, params, session, np.float32, pairs)
                _, forming = timed(C._prepare)
                read = pairs.product_bytes
                source, target = np.ones(read // 4, np.float32), np.empty(read // 4, np.float32)
                halves = [
                    slice(k * source.size // jobs, (k + 1) * source.size // jobs)
                    for k in range(jobs)
                ]

                def copy(session=session, source=source, target=target, halves=halves):
                    session.executor.map(lambda half: np.copyto(target[half], source[half]), halves)

                mine, other, ratio = in_turn(lambda C=C, V=V: C.matmul(V), copy)
                found[f"{name}_{jobs}"] = {
                    "pairs": len(pairs),
                    "density": 2.0 * len(pairs) / n**2,
                    "bytes": read + pairs.inner.nbytes + pairs.squared.nbytes,
                    "read": read,
                    "listing": listing,
                    "forming": forming,
                    "product": mine,
                    "copy": other,
                    "ratio": ratio,
                }
                del C, pairs, source, target
    return found


CASES = {f.__name__: f for f in (paper, n4000, n4000_memory, vader, imdb, products)}


def summary(found):
    """Return the rows of the table from the numbers of the cases."""
    rows = []

    def has(*names):
        return all(found.get(name) for name in names)

    if has("paper"):
        for name, what in (("binary", "binary words"), ("tfidf", "tf-idf")):
            mse, spread = found["paper"][name]
            rows.append(
                (
                    f"paper_reviews, 399 texts, {what}: MSE of five splits",
                    f"{mse:.3f} ± {spread:.3f}",
                    "at most 0.85",
                    mse <= 0.85,
                )
            )
    if has("n4000"):
        r = found["n4000"]
        ratio = (r["dense_fit"] + r["dense_explain"]) / (r["fit"] + r["explain"])
        what = f"n = {r['n']:,}, d = {r['d']:,}: "
        what += f"fit + {r['queries']:,} texts explained, dense Z / sparse Z"
        measured = f"{ratio:.0f} (fit {r['dense_fit']:.0f} s / {r['fit']:.0f} s; "
        measured += f"explained in {r['dense_explain']:.0f} s, from 8 texts / {r['explain']:.1f} s)"
        rows.append((what, measured, "at least 5", ratio >= 5))
        rows.append(
            (
                "the same: deviations apart by at most",
                f"{r['apart']:.0e}",
                "1e-8",
                r["apart"] < 1e-8,
            )
        )
    if has("n4000_memory"):
        r = found["n4000_memory"]
        share = r["memory"] / r["theirs"]
        words_ = f"{r['memory'] / 2**30:.2f} GiB resident / "
        words_ += f"{r['theirs'] / 2**30:.0f} GiB of d n^2 float32"
        rows.append(
            (
                "the same: peak memory / what pytorch-gpx needs",
                f"{share:.4f} ({words_})",
                "at most 0.1",
                share <= 0.1,
            )
        )
    for name, what, limit in (("vader", "vader_snippets", 4), ("imdb", "imdb_reviews", 12)):
        if not has(name):
            continue
        r = found[name]
        gigabytes = r["memory"] / 1e9
        rows.append(
            (
                f"{what}, {r['n']:,} texts: fit, hyperparameters included",
                f"{r['fit']:.0f} s ({r['form']}; {r['solution'].split(';')[0]})",
                "",
                None,
            )
        )
        rows.append(
            (
                f"{what}: {r['queries']:,} test texts explained with deviations",
                f"{r['explain']:.0f} s",
                "",
                None,
            )
        )
        rows.append(
            (
                f"{what}: peak memory",
                f"{gigabytes:.1f} GB resident",
                f"at most {limit} GB",
                gigabytes <= limit,
            )
        )
        errors = f"{r['mse']:.4f}, ridge {r['ridge']:.4f}" + (
            f", GPR on x alone {r['gpr']:.4f} ({r['gpr_seconds']:.0f} s)" if "gpr" in r else ""
        )
        rows.append((f"{what}: held-out MSE", errors, "", None))
        excess = "; ".join(
            f"{kind} {100 * a:.1f}% (at most {100 * b:.1f}%)"
            for kind, (a, b) in zip(("y", "weights"), r["excess"], strict=True)
        )
        rows.append((f"{what}: deviations above exact at four training rows", excess, "", None))
        rows.append((f"{what}: y within two deviations", f"{r['covered']:.1%}", "", None))
    if has("imdb"):
        r = found["imdb"]
        rows.append(
            (
                f"imdb_reviews: all {r['all']:,} at these hyperparameters",
                f"{r['all_seconds']:.0f} s ({r['all_form']})",
                "",
                None,
            )
        )
    if has("products"):
        for key, r in found["products"].items():
            if key == "memory":
                continue
            name, jobs = key.split("_")
            what = f"{name}, {r['pairs'] / 1e6:.0f} million pairs ({r['density']:.1%}), "
            what += f"threads: {jobs}; "
            what += "product of 16 vectors / copy of "
            asked = jobs != "1"
            stored = r["product"] / (r["copy"] * r["bytes"] / r["read"])
            times = f"{r['ratio']:.2f} ({1e9 * r['product'] / r['pairs']:.2f} ns a pair)"
            rows.append(
                (
                    what + "the bytes it reads",
                    times,
                    "at most 2" if asked else "",
                    r["ratio"] <= 2 if asked else None,
                )
            )
            rows.append(
                (
                    what + "all bytes stored (in proportion)",
                    f"{stored:.2f}",
                    "at most 2" if asked else "",
                    stored <= 2 if asked else None,
                )
            )
    return rows


if __name__ == "__main__":
    run_cases(__file__, __doc__, CASES, summary, "text")
