"""Names the pure parts of slicing: keys and versions of entities, what a document is compiled to, what other contracts
would make of it, and what a state becomes as a document."""

from analemma.canon.types import Tagged as Tagged
from analemma.slicing.entity_key import parse_entity_key as parse_entity_key
from analemma.slicing.incremental import Predecessor as Predecessor
from analemma.slicing.incremental import compile_entity as compile_entity
from analemma.slicing.joining import SliceContent as SliceContent
from analemma.slicing.joining import wanted_slices as wanted_slices
from analemma.slicing.simulate import simulate as simulate
from analemma.slicing.state_documents import StateFacts as StateFacts
from analemma.slicing.state_documents import build_document as build_document
from analemma.slicing.state_documents import needed_paths as needed_paths
from analemma.slicing.tsid import VersionGenerator as VersionGenerator
from analemma.slicing.tsid import format_version as format_version
from analemma.slicing.tsid import parse_version as parse_version
