"""Names the pure parts of workflows: documents and what is wrong with them, where they are cut, when schedules tick,
where nodes may go, how streams are read."""

from analemma.flows.loading import check_text as check_text
from analemma.flows.node_types.chat import events as events
from analemma.flows.node_types.places import Places as Places
from analemma.flows.node_types.variables import read_variables as read_variables
from analemma.flows.partitioning import partition as partition
from analemma.flows.partitioning import task_plans as task_plans
from analemma.flows.reading import read_workflow as read_workflow
from analemma.flows.schema import workflow_schema as workflow_schema
from analemma.flows.segments import plan_of as plan_of
from analemma.flows.ticking import Policy as Policy
from analemma.flows.ticking import Ticks as Ticks
from analemma.flows.ticking import due_ticks as due_ticks
