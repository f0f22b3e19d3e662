"""A table of this package beside other packages, measured in the same run: `make bench
CASE=peers`.

It needs the extra [peers] and takes half an hour on two cores. A task has data, a question
about them, and entries: ours, and the peers that can answer it. Every entry runs in a process
of its own, with two threads (or OMP_NUM_THREADS) and a limit of time. A first run on few rows
is not counted. Our entries run on these rows twice, from an empty cache, and the difference is
compilation. An entry that takes less than ten seconds is measured three times, and the median
counts.

Results go to results/peers_tasks.json, from which the module `table` makes verdicts and
tables. A peer that fails or runs out of time is shown as such. `--tiny` runs everything on few
rows and keeps nothing.
"""
