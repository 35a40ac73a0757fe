"""A catalogue of huge requests, hostile and legitimate: at least one for every API with a list or bytes.

Each module has the tables of one family. A row (`request.Huge`) names the API and the case, and has the version, the
error codes that the answer may contain and the function that builds the request. Requests are as large as decoders
accept: 99,000 elements, or frames of nearly 8 MiB.

`tests/process/test_stalls.py` watches the turns of a broker's loop while it serves them, `bench/stalls.py` measures
pauses.
"""

from tests.support.processes.huge.configs import CONFIGS
from tests.support.processes.huge.controller import CONTROLLER
from tests.support.processes.huge.groups import GROUPS
from tests.support.processes.huge.quotas import QUOTAS
from tests.support.processes.huge.records import RECORDS
from tests.support.processes.huge.request import Huge
from tests.support.processes.huge.security import SECURITY
from tests.support.processes.huge.telemetry import CLIENT_METRICS
from tests.support.processes.huge.topics import DELETIONS, METADATA, PARTITIONS, TOPICS
from tests.support.processes.huge.transactions import TRANSACTIONS

__all__ = ["CATALOGUE"]

# In the order in which they are sent: the last ones delete what others created.
CATALOGUE: tuple[Huge, ...] = (
    *RECORDS,
    *METADATA,
    *GROUPS,
    *TOPICS,
    *CONFIGS,
    *CLIENT_METRICS,
    *QUOTAS,
    *SECURITY,
    *PARTITIONS,
    *TRANSACTIONS,
    *CONTROLLER,
    *DELETIONS,
)
