"""A swarm: agents claim tasks from a board, each what it is able to, and may add tasks.

Offline, the models are scripts. For real ones, name them on the lines marked MODEL, say ``"openai:gpt-4o-mini"``.
"""

from umbel import Agent, Swarm, SwarmAgent
from umbel.testing import ScriptedModel, text, tool_calls

finds = tool_calls(
    ("share_finding", {"finding": "the meadow has hogweed"}),
    ("add_task", {"description": "remove the hogweed", "required": ["gloves"]}),
)
scout = Agent(model=ScriptedModel([finds, text("walked the meadow")]), name="scout")  # MODEL
gardener = Agent(
    model=ScriptedModel([lambda messages: text("removed it" if "hogweed" in str(messages[-1].content) else "?")]),  # MODEL
    name="gardener",
)
swarm = Swarm([SwarmAgent(scout, {"eyes"}), SwarmAgent(gardener, {"gloves"})])
board = [{"description": "look for dangerous plants", "required": ["eyes"]}]

if __name__ == "__main__":
    result = swarm.run_sync({"goal": "Make the meadow safe.", "tasks": board})
    for task in result.details["tasks"]:
        print(f"{task['id']} {task['description']}: {task['agent']}, {task['status']}")
    print(f"{result.stop_reason}: {result.outputs}")
    nobody = swarm.run_sync({"goal": "Fly.", "tasks": [{"description": "fly over the meadow", "required": ["wings"]}]})
    print(f"{nobody.success}: {nobody.error}")
