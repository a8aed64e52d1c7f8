"""Trust: which files and folders only their owner can write to."""

import functools
import logging
import os
import stat
from pathlib import Path

log = logging.getLogger(__name__)


def why_untrusted(path: Path) -> str:
    """Why a file or folder is not trusted: others can write to it; empty if only its owner can.

    It must belong to the user or to root, and its group or others must not be able to write to it.
    The user's private group may: where every user has one, files are made group-writable. A path
    that does not exist, or is neither a file nor a folder, is trusted.
    """
    if os.name != "posix":
        return ""
    try:
        status = path.stat()
    except OSError:
        return ""
    mode, problem = status.st_mode, ""
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        pass
    elif status.st_uid not in {0, os.geteuid()}:
        problem = f"{path} belongs to another user"
    elif mode & stat.S_IWOTH:
        problem = f"others can write to {path}"
    elif mode & stat.S_IWGRP and (_has_acl(path) or not _is_private_group(status.st_gid)):
        problem = f"its group can write to {path}"
    return problem


def _has_acl(path: Path) -> bool:
    """Whether an access control list names further users, whose rights the group's bits limit."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):  # not on Linux; not on this file system
        return False


def _is_private_group(gid: int) -> bool:
    """Whether a group is the user's own: it has the user's name and no other member."""
    import grp  # POSIX
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return (group.gr_name, gid) == (user.pw_name, user.pw_gid) and {*group.gr_mem} <= {user.pw_name}


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, unless the process has logged the same one before."""
    log.warning("%s", message)
