"""All commands of ``zonebloom``: those of other modules, and ``demo``."""

from __future__ import annotations

import os
import posixpath
import time

import click

from zonebloom.base.text import bytes_text, time_text
from zonebloom.cli import changing, describing, indices, reading, text
from zonebloom.cli.options import answer_command, zonebloom
from zonebloom.cli.output import CommandAnswer, terminal_width

__all__ = ["changing", "describing", "indices", "reading", "zonebloom"]


@zonebloom.command("demo", epilog="Example: zonebloom demo --path data")
@click.option(
    "--path",
    default="zonebloom-demo",
    help="Folder to write and keep the data in; zonebloom-demo by default.",
)
@answer_command
def demo_command(path: str) -> CommandAnswer:
    """Ask two million orders for keys, and time other engines, too.

    The command writes the orders to PATH/orders, about 110 MB, and indexes two columns. It asks
    each question with zonebloom, and by a scan of DuckDB, Polars and PyArrow, if they are
    installed. Then it updates an order and erases a customer. Exits with 1 if the engines find
    different orders. As JSON: path, num_rows (of the orders), indices, answers (rows, bytes that
    zonebloom read, seconds of each engine), receipts.
    """
    from zonebloom.cli import demo
    from zonebloom.facade.opening import dataset
    from zonebloom.index.describe import index_table
    from zonebloom.sbbf.kernel_loader import KERNELS

    folder = posixpath.join(path, "orders")
    text.print_to_stderr(f"writing orders to {demo.NUM_FILES} Parquet files in {folder}")
    ids = demo.write_orders(folder)
    text.print_to_stderr("loading the compiled kernels; the first time takes about half a minute")
    KERNELS.load()
    text.print_to_stderr("indexing order_id and customer")
    ds = dataset(folder)
    start = time.perf_counter()
    ds.create_scalar_index(["order_id", "customer"], "HASH", spark=False)
    seconds = time.perf_counter() - start
    indices = ds.describe_indices()
    text.print_to_stderr("asking")
    answers = [demo.ask(ds, folder, question) for question in demo.questions(ids)]
    is_same = all(answer.is_same for answer in answers)
    num_rows, num_bytes = ds.count_rows(), sum(map(os.path.getsize, ds.files))
    receipts = demo.change_orders(ds, ids)
    width = terminal_width()
    content = [
        f"{num_rows:,} orders in {demo.NUM_FILES} files of {bytes_text(num_bytes)}, as PyArrow "
        f"writes them by default; indexed in {time_text(seconds)}:",
        text.fitted_table(*index_table(indices), width),
        "",
        text.answers_text(answers, width),
        "",
        *(f"{receipt}\n" for receipt in receipts),
        "Try next:",
        *(f"  {command}" for command in demo.next_commands(folder, ids)),
    ]
    return CommandAnswer(
        {
            "path": path,
            "num_rows": num_rows,
            "indices": list(indices),
            "answers": answers,
            "receipts": receipts,
        },
        "\n".join(content),
        exit_code=0 if is_same else text.FAILED,
    )
