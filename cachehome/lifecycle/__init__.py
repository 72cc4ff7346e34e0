"""When caches move: in a driver (`session`), detached on a node (`agent`), around a command (`run`).

Nothing here reads or writes a store: each restore and publish is a process of its own (`transfer`), which can
be late, hang or die without its job taking notice.
"""
