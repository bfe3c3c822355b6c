"""Misses of a cache of libcachesim over a trace in its own format (oracleGeneral), warm-up left out.

Arguments: trace file, policy, capacity in objects, requests, first request that counts. Prints the misses that count.
"""

import sys

import libcachesim

path, policy, capacity, requests, counted_from = sys.argv[1:]
counted_from, requests = int(counted_from), int(requests)
cache = getattr(libcachesim, policy)(cache_size=int(capacity))
reader = libcachesim.TraceReader(path, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
cache.process_trace(reader, 0, counted_from)
ratio, _ = cache.process_trace(reader, counted_from, requests - counted_from)
print(round(ratio * (requests - counted_from)))
