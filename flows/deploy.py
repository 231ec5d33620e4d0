"""The work pool and the deployments of prefect.yaml, on the server that PREFECT_API_URL names.

    python -m flows.deploy

A schedule that was switched on in the UI stays on: prefect.yaml says how a new one begins.
"""

from __future__ import annotations

import subprocess
import sys

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate

from flows.settle import POOL, settle


def main() -> int:
    with get_client(sync_client=True) as client:
        # One run at a time: the pool is this workspace, and a workspace has one writer.
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", concurrency_limit=1), overwrite=True)
        settle(client)
        on = schedules_on(client)
        deployed = subprocess.run([sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"])
        if deployed.returncode:
            return deployed.returncode
        for deployment in client.read_deployments():
            for schedule in deployment.schedules:
                if (deployment.name, schedule.slug) in on and not schedule.active:
                    client.update_deployment_schedule(deployment.id, schedule.id, active=True)
    return 0


def schedules_on(client: SyncPrefectClient) -> set[tuple[str, str | None]]:
    """Deployment and slug of every active schedule."""
    return {(d.name, schedule.slug) for d in client.read_deployments() for schedule in d.schedules if schedule.active}


if __name__ == "__main__":
    sys.exit(main())
