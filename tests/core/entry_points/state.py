"""What the kernel stores of versions, as bytes."""

from __future__ import annotations

from analemma.canon.nodes import Link as Link
from analemma.catalog.port import BranchKey as BranchKey
from analemma.catalog.port import Head as Head
from analemma.state.records import Manifest as Manifest
from analemma.state.records import Receipt as Receipt
from analemma.state.records import decode_manifest as decode_manifest
from analemma.state.records import decode_receipt as decode_receipt
from analemma.state.records import encode_manifest as encode_manifest
from analemma.state.records import encode_receipt as encode_receipt
from analemma.state.records import next_record as next_record
from analemma.state.records import read_record as read_record
from analemma.state.segments import LONGEST as LONGEST
from analemma.state.segments import Segment as Segment
from analemma.state.segments import all_segments as all_segments
from analemma.state.segments import decode_segments as decode_segments
from analemma.state.segments import find_segment as find_segment
from analemma.state.segments import insert_segment as insert_segment
from analemma.state.segments import make_list as make_list
