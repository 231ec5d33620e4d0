"""Agents: the user's own code around the policy, trained and evaluated as it is (`rollout.agent`, docs/agents.md)."""
