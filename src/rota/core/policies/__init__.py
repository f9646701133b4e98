"""One module for each way to say who is next; `core/order.py` picks among them, `core/presets.py` names whole policies.

An ordering gives a run three things. Its `key` sorts it within a lane and never changes while it waits. Its `band`
says with whom it may share a lane: only with runs that stay in the same order for ever. Its `standing`, where it has
one, moves with time: smaller is more urgent, it ranks lanes against each other and tells who may stop whom.
"""
