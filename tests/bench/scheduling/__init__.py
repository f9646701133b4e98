"""`make bench-scheduling`: the policies beside each other on real and on made-up traces, and docs/SCHEDULING.md of it.

`workload` and `synthetic` are what goes in, `variants` who plays, `play` the simulations, `results` what is kept of
them; `goals`, `tables`, `pictures` and `document` are made from the results alone.
"""
