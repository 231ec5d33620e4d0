"""Runs whose worker is gone are told so: else they would stay Running, and fill the pool, for ever.

python -m flows.settle      # on the server that PREFECT_API_URL names, while no worker of the pool runs
"""

from __future__ import annotations

import sys

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelled, Crashed

POOL = "tuneloop"
UNENDED = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
SAID = "the worker ended while this ran; the next run continues the training"


def main() -> int:
    with get_client(sync_client=True) as client:
        settle(client)
    return 0


def settle(client: SyncPrefectClient) -> None:
    """End every run of the pool that is neither scheduled nor ended: Cancelled where that was wanted, else Crashed."""
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=UNENDED))),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL])),
    )
    for run in runs:
        wanted = run.state is not None and run.state.is_cancelling()
        for task in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))):
            if task.state_type in UNENDED:
                client.set_task_run_state(task.id, Crashed(message=SAID), force=True)
        client.set_flow_run_state(run.id, Cancelled() if wanted else Crashed(message=SAID), force=True)


if __name__ == "__main__":
    sys.exit(main())
