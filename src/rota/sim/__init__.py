"""The production scheduler on a virtual clock: what would have happened to these jobs, on this cluster, by this policy.

`engine` drives the same State, `reduce` and `decide` as the server; everything else here is what goes in (`trace`,
`cluster`, `declare`, `shake`, `policyfile`) and what comes out (`measure`, `fairturn`, `schedule`).
"""
