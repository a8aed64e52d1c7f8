"""Records with their bursts, which are known only when all records have come."""

import json
from collections.abc import Iterator

from detcli.data.bursts import BurstFinder, with_burst
from detcli.data.json_text import encode
from detcli.data.record import RecordJson
from detcli.sink.protocol import Encodable, RecordSink, Stored
from detcli.storage.temporary import temporary, temporary_file_errors


class BurstSink:
    """Collects records in a temporary file, and passes them on with their bursts at the end.

    The next photograph may always belong to the burst of an earlier one, and may have its best
    score. So nothing is written before the last record has come.
    """

    def __init__(self, sink: RecordSink, gap_s: float) -> None:
        """Prepare to hold records back until their bursts are known.

        Args:
            sink: Gets all records at the end, in their order; it is closed with this one.
            gap_s: The maximum number of seconds between the photographs of a burst.
        """
        self._sink = sink
        self._gap_s = gap_s
        self._finder = BurstFinder()
        self._collected_file = temporary()  # one record per line, in JSON
        self._is_passed_on = False  # whether the other sink has received the records

    def write(self, record: Encodable) -> None:
        """Collect a record."""
        fields = record.to_json()
        self._finder.add(fields)
        with temporary_file_errors():
            self._collected_file.write(f"{encode(fields)}\n".encode())

    def pass_on(self) -> None:
        """Write all collected records to the other sink, each with the burst that it belongs to.

        To be called when no more records come; a second call does nothing.
        """
        if self._is_passed_on:
            return
        self._is_passed_on = True
        bursts = self._finder.find(self._gap_s)
        for record_index, record in enumerate(self._collected_records()):
            burst = bursts.of_record(record_index)
            if burst is None:  # its image has no time
                self._sink.write(Stored(record))
            else:
                self._sink.write(Stored(with_burst(record, burst)))

    def _collected_records(self) -> Iterator[RecordJson]:
        """Yield the records in the temporary file, in the order in which they came."""
        with temporary_file_errors():
            self._collected_file.seek(0)
        for _ in range(self._finder.record_count):
            with temporary_file_errors():
                line = self._collected_file.readline()
            yield json.loads(line)

    def close(self) -> None:
        """Write all records, unless that was done, and close the other sink."""
        try:
            self.pass_on()
        finally:
            self._sink.close()
            self._collected_file.close()
