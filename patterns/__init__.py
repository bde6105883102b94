"""Coordination patterns: agents, functions and other patterns that work together. ``docs/patterns.md`` says when to use which.

    pattern.py                        what they all are: members, settings, the calls of an agent; one program, ``conduct``
    pipeline.py                       one after another, side by side, in a loop
    orchestrator.py                   a router gives a task's parts to specialists          routing.py, specialist.py
    handoff.py                        agents pass one conversation on                       transfer.py
    swarm.py                          agents claim tasks from a board                       board.py, board_tools.py
    debate.py, group_chat.py          agents read what the others say
    map_reduce.py, plan_execute.py    one member on many items; a manager with a ledger
    graph/                            nodes over a shared state, superstep by superstep
    functional.py                     plain code whose tasks are durable steps              task.py, play.py, reach.py, shape.py
    remote.py                         a member that lives outside the runtime
    structure.py, drawing.py          how a pattern flows, as a picture

A program runs on a stage (``actors/supervisor/stage.py``), in a supervisor, and is played again after a pause or a crash.
"""
