"""Workflows: documents of nodes, cut into segments that run one after the other, each ending with one commit.

The pure part, from the ground up; none of it does input or output but `loading`, which reads files:

- `naming`, `texts`, `conditions`: names and paths, texts with placeholders, what a branch or a loop asks of the state.
- `nodes`, `document`: every node type and the document, strict and frozen; canonical form and hash.
- `structure`, `checking`, `field_rules`: what stands inside what, in which order; everything that can be wrong.
- `reading`, `loading`: data, text and files into documents, with every problem at its node and line.
- `segments`, `partitioning`: the plan of a document: segments, their configurations, their successors.
- `walking`: where a run stands in its plan, as plain data, and where it goes next.
- `building`: the same documents from Python functions (`Flow`).
- `schema`, `drawing`: the published JSON Schema; a plan as text.

What runs it:

- `handlers`, `context`: what nodes do, and what they are given.
- `working_state`, `effects`, `calling`: the state a node sees and changes, what it does outside, how it is called.
- `run_kernel`, `segment_running`, `segment_types`, `running`: verified plans and their commits; one segment; each type
  of segment; one after the other. A type of segment that runs elsewhere adds itself to `segment_types`.
- `beginning`, `deciding`, `rerunning`, `leases`, `worker`, `programs`: births, decisions, going back, who holds a run,
  who goes on with it, which modules bring functions along.
- `runs`, `flows`: what callers see of a run, and the verbs.

docs/design/flows.md says what a runner does with a plan, and why it is so.
"""
