"""`remat trace DIR --with profile.json -o merged.json.gz`: the plans of a dump beside a profile of torch's."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

from remat_compiler.cli.graph_choice import of_graph
from remat_compiler.errors import OptionError
from remat_compiler.files import write_whole
from remat_compiler.report.merged_trace import merged, read_graph_traces, read_profile
from remat_compiler.report.profile_places import places_in


def add_trace_command(commands: Any) -> None:
    """Add `trace` to the parser's subcommands."""
    parser = commands.add_parser(
        "trace",
        help="plans over time as one trace for Perfetto, beside a profile",
        description="Write the plans of a dump to one trace, which opens in https://ui.perfetto.dev. Beside a profile, "
        "each plan begins where the profile has the call of its graph.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="folder given as dump or REMAT_DUMP")
    parser.add_argument("--graph", metavar="NAME", help="only this graph")
    parser.add_argument(
        "--with", dest="profile", type=Path, metavar="FILE", help="what torch.profiler's export_chrome_trace wrote"
    )
    parser.add_argument(
        "--call",
        type=int,
        default=0,
        metavar="N",
        help="which recorded call of each graph (0, the first one; -1 the last)",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="where the trace goes; compressed if it ends in .gz",
    )
    parser.set_defaults(command=_trace)


def _trace(options: argparse.Namespace) -> str:
    """The text of `remat trace`."""
    output: Path = options.output
    graphs = of_graph(options.graph, read_graph_traces(options.directory), lambda graph: graph.name)
    profile = None if options.profile is None else read_profile(options.profile)
    places = {} if profile is None else places_in(profile["traceEvents"], graphs, options.call)
    text = merged(graphs, profile, places)
    try:
        if options.profile is not None and output.exists() and output.samefile(options.profile):
            raise OptionError(f"got -o {output}, which is the profile; name another file")
        # Without the time of writing, so that the same input gives the same bytes.
        data = gzip.compress(text.encode(), mtime=0) if output.suffix == ".gz" else text
        write_whole(output, data, mode=0o666)
    except OSError as error:
        raise OptionError(f"got -o {output}, which cannot be written ({error})") from error
    told = [f"{output}: open it in https://ui.perfetto.dev"]
    for graph in graphs:
        place = places.get(graph.name)
        if place is not None:
            without = "" if place.backward_ns is not None else ", whose backward it does not have"
            told.append(f"{graph.name}: beside the call of {graph.compile_id} in the profile{without}")
        else:
            told.append(f"{graph.name}: {'from 0' if profile is None else 'left out: the profile has no such call'}")
    return "".join(f"{line}\n" for line in told)
