#!/usr/bin/env python3
"""Writes scipy_values.json: what SciPy says about the statistics of flaz-bench, for tests/scipy.rs.

    python3 -m venv venv && venv/bin/pip install scipy
    venv/bin/python scipy_values.py > scipy_values.json

Holm's procedure is not in SciPy; it is written out here from its definition.
"""

import csv
import json
import pathlib

import numpy
import scipy
from scipy import stats

HERE = pathlib.Path(__file__).parent
RUNS = 10


def student():
    for df in [0.5, 1, 1.7, 3, 9, 12.34, 18, 99, 1e4, 1e6]:
        for t in [1e-6, 0.01, 0.5, 1, 2.2, 5, 12, 80, 1e4]:
            yield {"t": t, "df": df, "two_sided": 2 * stats.t.sf(t, df)}


def quantiles():
    for df in [0.5, 1, 1.7, 3, 9, 12.34, 18, 99, 1e4, 1e6]:
        for tail in [0.4, 0.1, 0.05, 0.025, 1e-3, 1e-8]:
            yield {"tail": tail, "df": df, "t": stats.t.isf(tail, df)}


def pairs(random):
    """Pairs of sets of runs: sizes, means and spreads that differ, rounded ones with ties."""
    for na, nb, ratio, cv_a, cv_b, decimals in [
        (10, 10, 1.0, 0.01, 0.01, None),
        (10, 10, 1.02, 0.01, 0.05, None),
        (3, 3, 1.3, 0.02, 0.02, None),
        (2, 5, 0.9, 0.002, 0.1, None),
        (4, 4, 2.0, 0.01, 0.01, None),
        (30, 12, 0.98, 0.03, 0.01, None),
        (50, 50, 1.01, 0.02, 0.02, None),
        (60, 55, 1.01, 0.02, 0.03, None),
        (10, 10, 1.0005, 0.001, 0.001, 0),
        (12, 9, 1.01, 0.02, 0.02, -3),
        (20, 20, 0.7, 0.5, 0.2, None),
    ]:
        a = 1e5 * numpy.exp(cv_a * random.standard_normal(na))
        b = 1e5 * ratio * numpy.exp(cv_b * random.standard_normal(nb))
        if decimals is not None:
            a, b = a.round(decimals), b.round(decimals)
        yield a, b


def one_pair(a, b):
    la, lb = numpy.log(a), numpy.log(b)
    welch = stats.ttest_ind(lb, la, equal_var=False)
    interval = welch.confidence_interval(0.95)
    margin = numpy.log1p(0.01)
    equivalence = max(
        stats.ttest_ind(lb + margin, la, equal_var=False, alternative="greater").pvalue,
        stats.ttest_ind(lb - margin, la, equal_var=False, alternative="less").pvalue,
    )
    ties = len(set(a) | set(b)) < len(a) + len(b)
    exact = not ties and max(len(a), len(b)) <= 50
    ranks = stats.mannwhitneyu(a, b, method="exact" if exact else "asymptotic")
    bootstrap = stats.bootstrap(
        (a, b),
        lambda x, y, axis: numpy.median(y, axis=axis) / numpy.median(x, axis=axis),
        n_resamples=200_000,
        method="percentile",
        batch=20_000,
        rng=numpy.random.default_rng(1),
    ).confidence_interval
    return {
        "a": list(a),
        "b": list(b),
        "mean_a": a.mean(),
        "stddev_a": a.std(ddof=1),
        "median_a": numpy.median(a),
        "welch": {
            "t": welch.statistic,
            "df": welch.df,
            "p": welch.pvalue,
            "low": interval.low,
            "high": interval.high,
        },
        "equivalence_1_pct": equivalence,
        "mann_whitney": {"u": ranks.statistic, "p": ranks.pvalue, "exact": exact},
        "median_ratio": {"low": bootstrap.low, "high": bootstrap.high},
    }


def holm(p):
    order = numpy.argsort(p, kind="stable")
    factors = len(p) - numpy.arange(len(p))
    adjusted = numpy.empty(len(p))
    adjusted[order] = numpy.minimum(1, numpy.maximum.accumulate(factors * numpy.asarray(p)[order]))
    return list(adjusted)


def rows(name):
    for row in csv.DictReader(open(HERE / name)):
        key = (row["record_kib"], row["compressibility_pct"], row["test"])
        yield key, [float(value) for column, value in row.items() if column not in
                    ("record_kib", "compressibility_pct", "test")]


def table():
    """The published tables: Welch's test from means and deviations, on the scale of logarithms."""
    baseline = dict(rows("sf1222-throughput.csv"))
    cells = []
    for key, (difference_pct, stddev_pct) in rows("sf1222-kernel-diff.csv"):
        if key not in baseline:
            continue
        mean_a, stddev_a = baseline[key]
        mean_b, stddev_b = mean_a * (1 + difference_pct / 100), mean_a * stddev_pct / 100
        variance_a, variance_b = (numpy.log1p((s / m) ** 2) for m, s in ((mean_a, stddev_a), (mean_b, stddev_b)))
        test = stats.ttest_ind_from_stats(
            numpy.log(mean_b) - variance_b / 2, variance_b ** 0.5, RUNS,
            numpy.log(mean_a) - variance_a / 2, variance_a ** 0.5, RUNS,
            equal_var=False,
        )
        cells.append({"key": " ".join(key), "p": test.pvalue})
    p = [cell["p"] for cell in cells]
    for cell, bh, h in zip(cells, stats.false_discovery_control(p), holm(p)):
        cell.update(p_bh=bh, p_holm=h)
    return cells


def main():
    random = numpy.random.default_rng(1222)
    values = {
        "scipy": scipy.__version__,
        "student": list(student()),
        "quantiles": list(quantiles()),
        "pairs": [one_pair(a, b) for a, b in pairs(random)],
        "table": table(),
    }
    print(json.dumps(values, indent=1, default=float))


main()
