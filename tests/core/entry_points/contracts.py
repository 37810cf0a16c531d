"""Names the pure parts of contracts: what is wrong with them, how they differ, their paths, patterns and versions, what
their schemas take, and the published format."""

from analemma.contracts.diffing import diff_contracts as diff_contracts
from analemma.contracts.globs import matches as matches
from analemma.contracts.globs import why_no_glob as why_no_glob
from analemma.contracts.loading import check_contracts as check_contracts
from analemma.contracts.paths import parse_path as parse_path
from analemma.contracts.payloads import check_payload as check_payload
from analemma.contracts.schema import contracts_schema_text as contracts_schema_text
from analemma.contracts.semver import parse_semver as parse_semver
