"""Drafts of the model's trained drafter, which reads the caches of the model."""

from collections.abc import Sequence

from outrider.decoding.drafts import DraftSource
from outrider.decoding.protocol import Backend, FusedDrafts, Proposal, RoundOutput
from outrider.decoding.queries import Argmax
from outrider.decoding.request import Row


class Source(DraftSource):
    """The backend's drafter; drafting and verification are one call if the backend has one."""

    drafting = True

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.drafts = backend.drafts

    def draft(
        self,
        rows: Sequence[Row],
        counts: Sequence[int],
        temperature: float = 1.0,
        uniform: Sequence[Sequence[float]] = (),
    ) -> Proposal:
        """Draft after the last token of each row, which is not in the caches yet."""
        assert self.drafts is not None
        last = [row.last for row in rows]
        if not uniform:
            return self.drafts.draft(last, self.state, counts)
        return self.drafts.draft(last, self.state, counts, temperature=temperature, uniform=uniform)

    def draft_and_verify(
        self, rows: Sequence[Row], counts: Sequence[int], query: Argmax, min_survival: float
    ) -> RoundOutput:
        """Use the backend's own call, unless near-ties are reported too."""
        if query.closeness or not isinstance(self.drafts, FusedDrafts):
            return super().draft_and_verify(rows, counts, query, min_survival)
        return self.drafts.draft_and_verify(
            [row.last for row in rows],
            self.state,
            counts,
            query,
            cached=[row.cached for row in rows],
            min_survival=min_survival,
        )
