"""What watches over a run's reasoning. Everything here is a pure rule, or awaits nothing but one call of a judge.

reflexion   progress of an iteration, by rule        evidence   what a judge reads, and the call to it
grounding   claims of a draft, by a judge            matching   the same without a model
gsar        typed grounding: cells, score, decision  refine     its outer loop
causal      causal chains
"""
