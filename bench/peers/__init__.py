"""Beside the peers in the same run: `make bench CASE=peers` (extra [peers]; half an hour on two cores).

A task has data, what is asked of them, and entries: ours and the peers that can do it. Every entry runs in a process of its
own, with two threads (or OMP_NUM_THREADS) and a limit of time, after one run on few rows that is not counted; ours is timed
on these twice, from an empty cache, and the difference is compilation. What takes less than ten seconds is the median of
three. Results go to results/peers_tasks.json; `table` makes verdicts and tables of them. A peer that fails or runs out of time
is shown as such. `--tiny` runs everything on few rows and keeps nothing.
"""
