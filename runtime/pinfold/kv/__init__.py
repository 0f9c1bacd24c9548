"""KV -> fewer bytes, and back.

Enters: a `Snapshot` (arrays of K and V by layer, whichever engine took it) and a `Recipe` (what calibration learnt of
the model). Leaves: bytes, and from them the snapshot again: exactly with ``exact``, within a measured loss otherwise.
No engine, no session and no disk may be imported here.
"""
