"""Where a workspace's files are: a directory, and beside it a folder for what is on its way in or out, on the same file
system, so that moving is one rename.

    /data/ws123                         the volume
    /data/.analemma-ws123/lock          held by whoever works on the volume; the kernel gives back the locks of the dead
    /data/.analemma-ws123/owner         whose volume this is
    /data/.analemma-ws123/cache         which files nobody has touched since they were restored
    /data/.analemma-ws123/staging-NAME  what is being restored, by the attempt of this name
    /data/.analemma-ws123/trash-OP_ID   a volume that was archived, moved aside to be looked at once more
    /data/.analemma-ws123/doomed-OP_ID  the same, when it is being deleted
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Protocol

from analemma.archives.deleting import delete_tree
from analemma.archives.mounts import check_mounts, mounts_in
from analemma.archives.walking import BOOKKEEPING, fingerprint_of
from analemma.errors import Conflict, Invalid, Unavailable

_LOCK = "lock"
_OWNER = "owner"
_STAGING = "staging-"
_CACHE = "cache"
_TRASH = "trash-"
_DOOMED = "doomed-"


class VolumeMissing(Unavailable):
    """The volume of a workspace is not where it should be: elsewhere, perhaps, or not mounted."""


class Volume(Protocol):
    """What archives ask of a volume. All but `lock` is called by whoever holds the lock."""

    path: str
    """Where its files can be read, while it is there."""
    cache: str | None
    """Where to remember, on this machine, what a restore left; None: nowhere."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the volume against every other process and thread, also of workers that lost their lease; Conflict at
        once if somebody holds it."""

    def claim(self, owner: str, *, create: bool) -> None:
        """Make the volume `owner`'s, and with `create` make it if it is not there; Conflict if it is another's."""

    def check_owner(self, owner: str) -> None:
        """VolumeMissing unless it was made `owner`'s, Conflict if it is another's. Changes nothing."""

    def check_place(self) -> None:
        """Invalid or Conflict if there can be no volume at this place. Changes nothing."""

    def check_removable(self) -> None:
        """Unavailable if this program may not move the volume away. Changes nothing."""

    def make_place(self) -> None:
        """Make what must be there before a volume can be locked."""

    def release(self, owner: str) -> None:
        """Forget that it is `owner`'s, with all bookkeeping; one that is another's is left alone."""

    def is_here(self) -> bool:
        """Whether it was ever held on this machine, and not released since."""

    def exists(self) -> bool:
        """Whether there is a volume with something in it, or at least a volume."""

    def is_empty(self) -> bool:
        """Whether there is no volume, or nothing in it."""

    def fingerprint(self) -> str:
        """What changes whenever the volume does."""

    def prepare_staging(self, name: str) -> str:
        """An empty directory to restore into, under a name of this attempt; what earlier attempts left is gone."""

    def identity(self, staging: str | None = None) -> str | None:
        """What stays the same when the staging of a name becomes the volume: of that staging, or of the volume; None
        if it is not there."""

    def swap_in(self, name: str) -> None:
        """Make that staging the volume, at once and durably; Conflict if there is a volume that is not empty."""

    def drop_staging(self) -> None:
        """Remove what any attempt has in staging."""

    def move_aside(self, op_id: str) -> None:
        """Take the volume away, at once and durably; what is gone already is success. Conflict, and nothing is moved,
        if something is mounted in it."""

    def aside(self, op_id: str) -> str | None:
        """Where a volume that was moved aside is; None if it is not."""

    def move_back(self, op_id: str) -> None:
        """Undo `move_aside`."""

    def delete_aside(self, op_id: str) -> None:
        """Delete what was moved aside; what is gone already is success. From its first moment on nothing is aside, so
        that nobody moves back what is left of it."""


class DirectoryVolume:
    """A volume that is a directory of this machine."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._above, self._name = os.path.split(path)
        self._beside = os.path.join(self._above, BOOKKEEPING + self._name)
        self.cache: str | None = os.path.join(self._beside, _CACHE)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        if not os.path.isdir(self._above):
            # Another machine's volume, or one whose place is gone: there is nothing here that a lock could protect.
            yield
            return
        with self._translating():
            file = self._take_lock()
        try:
            yield
        finally:
            os.close(file)

    def claim(self, owner: str, *, create: bool) -> None:
        with self._translating():
            self._check_place()
            found = self._owner()
            if found is not None and found != owner:
                raise self._others(found)
            if found is None:
                draft = os.path.join(self._beside, f".{_OWNER}")
                with open(draft, "w", encoding="utf-8") as file:
                    file.write(owner)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(draft, os.path.join(self._beside, _OWNER))
                _sync_folder(self._beside)
            if create and not os.path.lexists(self.path):
                os.mkdir(self.path)
                _sync_folder(self._above)

    def check_owner(self, owner: str) -> None:
        with self._translating():
            found = self._owner()
        if found is None:
            # Any directory may lie where a volume was: below a disk that is not mounted, for one.
            raise volume_missing(self.path)
        if found != owner:
            raise self._others(found)

    def check_removable(self) -> None:
        for each in (self._above, self.path):
            if not os.access(each, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
                raise Unavailable(f"this program may not write to {each}", hint="check its permissions")

    def make_place(self) -> None:
        with self._translating():
            os.makedirs(self._above, exist_ok=True)

    def release(self, owner: str) -> None:
        with self._translating():
            if self._owner() not in (None, owner) or not os.path.isdir(self._beside):
                return
            for name in os.listdir(self._beside):
                if name != _LOCK:
                    _remove(os.path.join(self._beside, name))
            # The lock goes last: whoever waits for it finds out that it is no longer the one with that name.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._beside, _LOCK))
            try:
                os.rmdir(self._beside)
            except OSError as exc:
                # Somebody may have the next lock in there already.
                if exc.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                    raise
            _sync_folder(self._above)

    def is_here(self) -> bool:
        return os.path.isdir(self._beside)

    def exists(self) -> bool:
        with self._translating():
            try:
                return stat.S_ISDIR(os.lstat(self.path).st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def is_empty(self) -> bool:
        with self._translating():
            try:
                with os.scandir(self.path) as entries:
                    return next(entries, None) is None
            except FileNotFoundError:
                return True

    def fingerprint(self) -> str:
        return fingerprint_of(self.path)

    def prepare_staging(self, name: str) -> str:
        self.drop_staging()
        with self._translating():
            staging = self._staging(name)
            os.mkdir(staging, 0o700)
            return staging

    def identity(self, staging: str | None = None) -> str | None:
        # Devices are numbered anew when a machine starts, inodes are not; whose volume it is, its owner tells.
        with self._translating():
            try:
                return str(os.lstat(self.path if staging is None else self._staging(staging)).st_ino)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def swap_in(self, name: str) -> None:
        with self._translating():
            try:
                # Over an empty directory, which is what a mount point or a careful user leaves there, this is allowed.
                os.rename(self._staging(name), self.path)
            except OSError as exc:
                if exc.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise not_empty(self.path) from exc
                raise
            _sync_folder(self._above)
            _sync_folder(self._beside)

    def drop_staging(self) -> None:
        with self._translating(), contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._beside):
                if name.startswith(_STAGING):
                    _remove(os.path.join(self._beside, name))

    def move_aside(self, op_id: str) -> None:
        with self._translating():
            if os.path.lexists(self._trash(op_id)):
                return
            check_mounts(self.path)
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.path, self._trash(op_id))
            _sync_folder(self._above)
            _sync_folder(self._beside)

    def aside(self, op_id: str) -> str | None:
        return self._trash(op_id) if os.path.lexists(self._trash(op_id)) else None

    def move_back(self, op_id: str) -> None:
        with self._translating():
            os.rename(self._trash(op_id), self.path)
            _sync_folder(self._above)
            _sync_folder(self._beside)

    def delete_aside(self, op_id: str) -> None:
        with self._translating():
            doomed = os.path.join(self._beside, _DOOMED + op_id)
            check_mounts(self._trash(op_id))  # guard: volume.trash
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._trash(op_id), doomed)
                _sync_folder(self._beside)
            _remove(doomed)

    def _staging(self, name: str) -> str:
        return os.path.join(self._beside, _STAGING + name)

    def _trash(self, op_id: str) -> str:
        return os.path.join(self._beside, _TRASH + op_id)

    def _others(self, owner: str) -> Conflict:
        """What whoever wants a volume that is another's is told: nobody finds a hidden folder without its name."""
        return Conflict(
            f"the volume {self.path} belongs to {owner}, as {os.path.join(self._beside, _OWNER)} says",
            hint=f"give each workspace its own volume; if that one is no more, remove the folder {self._beside}",
            volume=self.path,
        )

    def _owner(self) -> str | None:
        try:
            with open(os.path.join(self._beside, _OWNER), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def _take_lock(self) -> int:
        name = os.path.join(self._beside, _LOCK)
        while True:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._beside, 0o700)
            try:
                file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # Removed between the two lines above, by whoever released the volume.
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # guard: volume.locked
                # Whoever held it may have removed it: then this is a lock on a file that nobody else will find.
                if os.path.exists(name) and os.path.samestat(os.fstat(file), os.stat(name)):
                    return file
            except BlockingIOError:
                os.close(file)
                raise Conflict(
                    f"somebody works on the volume {self.path}", hint="wait until that is done", volume=self.path
                ) from None
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def check_place(self) -> None:
        with self._translating():
            self._check_place()

    def _check_place(self) -> None:
        if os.path.lexists(self.path):
            facts = os.lstat(self.path)
            if not stat.S_ISDIR(facts.st_mode):
                raise Invalid(
                    f"the volume {self.path} is not a directory", hint="move it away, or use another directory"
                )
            if facts.st_dev != os.stat(self._above).st_dev or self.path in mounts_in(self.path):
                raise Invalid(f"the volume {self.path} is a mount point", hint="use a directory below it")
        above = self._above
        while above != os.path.dirname(above):
            folder, name = os.path.split(above)
            beside = os.path.join(folder, BOOKKEEPING + name)
            if os.path.exists(os.path.join(beside, _OWNER)):
                raise Conflict(
                    f"{self.path} lies inside the volume {above}, to which {beside} belongs",
                    hint=f"volumes must not lie inside others; if that one is no more, remove the folder {beside}",
                )
            above = folder

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise Unavailable(
                f"the volume {self.path} cannot be used: {exc.strerror or exc}",
                hint="check the permissions of the directories above it",
            ) from exc


class Volumes(Protocol):
    """Finds volumes by the names under which workspaces keep them."""

    def resolve(self, name: str | os.PathLike[str]) -> str:
        """The name by which a volume is known from now on, or Invalid."""

    def open(self, name: str) -> Volume:
        """The volume of a resolved name, whether or not it is there."""


class DirectoryVolumes:
    """Volumes that are directories; their names are absolute paths without links."""

    def resolve(self, name: str | os.PathLike[str]) -> str:
        return resolve_directory(name)

    def open(self, name: str) -> Volume:
        return DirectoryVolume(name)


def resolve_directory(path: str | os.PathLike[str]) -> str:
    """The path by which a directory is known from now on, or Invalid."""
    text = os.fspath(path)
    try:
        encoded = os.path.realpath(text).encode() if text else b""
    except (ValueError, UnicodeEncodeError):
        encoded = b""
    name = os.path.basename(encoded)
    if not name or b"\0" in encoded or len(encoded) > 3000 or len(name) > 200:
        raise Invalid(f"not a directory for a volume: {ascii(text)[:80]}", hint="name a directory, not the root")
    if name.startswith(BOOKKEEPING.encode()):
        raise Invalid(f"a volume's name cannot begin with {BOOKKEEPING}", hint="use another directory")
    return encoded.decode()


def volume_missing(path: str) -> VolumeMissing:
    """What whoever works on a workspace is told where its volume is not."""
    return VolumeMissing(
        f"the volume {path} is not here", hint="run this where it is, or bring it back first", volume=path
    )


def not_empty(path: str) -> Conflict:
    """What whoever restores over files is told."""
    return Conflict(f"there are files in {path} already", hint="move them away first; nothing is overwritten")


def _remove(path: str) -> None:
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(facts.st_mode):
        check_mounts(path)  # guard: volume.doomed
        delete_tree(path)
    else:
        os.unlink(path)
    _sync_folder(os.path.dirname(path))


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
