"""Who may own and write what is read from a directory store: whoever can write there can run code here.

owner      me, root, and those whom `store_owners` names
others     may not write; a sticky directory is fine (/tmp), since the owner of each thing in it is checked, too
group      may not write, unless it is the owner's private group
shared     the group may write, and may own: all its members are trusted alike. It is one of mine; for root, that of
           the store's root. A sticky directory is no longer fine: in one, anybody can make things of that group.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from cachehome.errors import ConfigError


class Owners:
    """The rules above for one store. *trusted*: names or ids of users besides me and root."""

    def __init__(self, trusted: Iterable[str] = (), *, shared: bool = False) -> None:
        self.shared = shared
        self.users = {os.geteuid(), 0, *map(_uid, trusted)}
        self.groups = {os.getegid(), *os.getgroups()} if shared else set()

    def meet(self, root: os.stat_result) -> None:
        """Take note of the store's root: its group is the one that is meant where root reads a shared store."""
        if self.shared and os.geteuid() == 0:
            self.groups.add(root.st_gid)

    def distrust(self, path: str, status: os.stat_result) -> str:
        """Why what *status* tells of *path* can't be trusted, in words that end with what to do; "" if it can."""
        mode, uid, gid = status.st_mode, status.st_uid, status.st_gid
        ours = gid in self.groups
        if uid not in self.users and not ours:
            return f"{path} belongs to {_user(uid)}: name them in store_owners if they are to be trusted"
        sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX and not self.shared
        if mode & stat.S_IWOTH and not sticky:
            return f"{path} can be written by everybody: chmod o-w {path}"
        if mode & stat.S_IWGRP and not (sticky or ours or _private(uid, gid)):
            advice = (
                "which this user is not in"
                if self.shared
                else "set shared = on if all its members are trusted"
            )
            return f"{path} can be written by {_group(gid)}: {advice}, or chmod g-w {path}"
        return ""


def _uid(name: str) -> int:
    if name.isdecimal():
        return int(name)
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ConfigError(
            f"store_owners: there is no user {name!r} here; give the number",
            key="store_owners",
            source="store_owners",
            value=name,
            allowed="user names or ids, comma separated",
        ) from None


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    import grp

    try:
        return f"the group {grp.getgrgid(gid).gr_name} (gid {gid})"
    except KeyError:
        return f"gid {gid}"


def _private(uid: int, gid: int) -> bool:
    """Whether a group is that of one user alone, as many systems make it, with a umask of 002."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
