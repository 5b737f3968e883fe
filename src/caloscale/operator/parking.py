"""Runs that wait for capacity, in classes, as Kueue does it: what one of a class cannot have now, none of it can."""

from collections.abc import Callable, Hashable, Mapping

from caloscale.cluster.capacity.nodes import PoolKey
from caloscale.cluster.capacity.placement import Need
from caloscale.cluster.names import RunKey


class Parking:
    """The first of each class is tried when a pool has what it needs; the next one follows when that one has left."""

    def __init__(self) -> None:
        self._members: dict[Hashable, dict[RunKey, None]] = {}
        self._needs: dict[Hashable, Mapping[PoolKey, Need]] = {}
        self._class_of: dict[RunKey, Hashable] = {}
        self._pools: set[PoolKey] = set()
        self._changed: set[Hashable] = set()
        self.changes = 0
        """How often a pool came, went, or got other nodes."""

    def park(self, run: RunKey, group: Hashable, needs: Mapping[PoolKey, Need], *, outdated: bool = False) -> None:
        """The run waits; ``needs``: changes of the pools after which it is tried. ``outdated``: pools have changed
        since these were computed, so that it is to be tried again."""
        if self._class_of.get(run, group) != group:
            self.leave(run)
        self._class_of[run] = group
        self._members.setdefault(group, {}).setdefault(run)
        self._needs[group] = needs
        (self._changed.add if outdated else self._changed.discard)(group)

    def waits(self, run: RunKey, free: Callable[[PoolKey], int]) -> bool:
        """Whether a run that waits here need not be tried: others are before it, or no pool has what it needs."""
        group = self._class_of[run]
        if next(iter(self._members[group])) != run:
            return True
        met = (need.is_met(free(key), changed=False) for key, need in self._needs[group].items())
        return group not in self._changed and not any(met)

    def leave(self, run: RunKey) -> RunKey | None:
        """The run waits no more; returns the one of its class that is to be tried now, where it was the first."""
        group = self._class_of.pop(run, None)
        if group is None:
            return None
        members = self._members[group]
        first = next(iter(members))
        del members[run]
        if not members:
            del self._members[group], self._needs[group]
            self._changed.discard(group)
            return None
        return next(iter(members)) if first == run else None

    def wake(self, key: PoolKey, free: int, *, exists: bool = True, changed: bool = False) -> set[RunKey]:
        """The runs to try after a pool has got more room; ``changed``: its nodes are others, or it is new or gone."""
        is_new = exists and key not in self._pools
        (self._pools.add if exists else self._pools.discard)(key)
        self.changes += is_new or changed
        woken = set()
        for group, needs in self._needs.items():
            need = needs.get(key)
            if is_new or (need is not None and need.is_met(free, changed)):
                woken.add(next(iter(self._members[group])))
            if is_new or (need is not None and changed and need.changed):
                self._changed.add(group)
        return woken

    def clear(self) -> None:
        """Nothing is known any more of what waiting runs need."""
        self._members.clear()
        self._needs.clear()
        self._class_of.clear()
        self._changed.clear()

    def __contains__(self, run: RunKey) -> bool:
        """Whether the run waits here."""
        return run in self._class_of
