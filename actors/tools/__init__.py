"""Tools: declaring them, describing them to a model, and running their bodies where a fault cannot spread.

    decorator   ``@tool`` and the ``Tool`` definition          signature   parameters, JSON schema, validation
    context     what a running call knows about itself         output      results as text for the model
    invoke      one call, from arguments to result             threads     sync bodies beside the loop
    workers     sync bodies in processes that can be killed    toolloop    async bodies on a loop of their own
    executor    the actor that owns all of these           interrupt   the signal of a tool that asks a person
    limits      long results, cut or stored ...            result_store   ... here
    verification, circuit: what a run's executions say     builtin     tools that come with Umbel

Import from the modules; this package imports nothing by itself, so that a worker process starts fast.
"""
