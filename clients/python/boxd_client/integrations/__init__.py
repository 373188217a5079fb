"""Integrations with frameworks for agents. Each needs the extra of the same name.

`openai_agents` has a sandbox client for the OpenAI Agents SDK (`pip install
'boxd-client[openai-agents]'`), and `deepagents` a backend for Deep Agents (`pip install
'boxd-client[deepagents]'`).
"""
