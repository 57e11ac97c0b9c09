"""``python -m sdpakit.ptxemu`` runs an entry on .npy files."""

import subprocess
import sys

import numpy as np
import pytest
from tests.ptxemu.texts import POINTERS, copying, kernel

from sdpakit.ptxemu.__main__ import main

COPY = "ld.global.u32 %r1, [%rd2]; add.u32 %r1, %r1, 1; st.global.u32 [%rd3], %r1;"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "copy.ptx").write_text(copying(COPY), encoding="utf-8")
    np.save(tmp_path / "x.npy", np.arange(64, dtype=np.uint32))
    return tmp_path


def test_output_is_saved_and_what_was_done_is_told(folder, capsys):
    command = ["copy.ptx", "--block", "64", "x.npy", "y.npy=uint32[8,8]", "--profile"]
    assert main([*command, "--lines", "2"]) == 0
    assert np.array_equal(np.load("y.npy"), np.arange(1, 65, dtype=np.uint32).reshape(8, 8))
    said = capsys.readouterr().out
    assert "k (sm_90a): " in said
    assert "4 requests, 16 sectors" in said
    assert " x line " in said


def test_results_may_begin_as_another_array_or_zeros(folder, capsys):
    assert main(["copy.ptx", "--block", "32", "x.npy", "y.npy=x.npy"]) == 0
    wanted = np.arange(64)
    wanted[:32] += 1
    assert np.array_equal(np.load("y.npy"), wanted)
    assert main(["copy.ptx", "--block", "32", "x.npy", "y.npy=zeros:uint32[64]"]) == 0
    wanted[32:] = 0
    assert np.array_equal(np.load("y.npy"), wanted)
    assert np.array_equal(np.load("x.npy"), np.arange(64))


def test_values_structs_and_sizes(folder):
    body = """
      ld.param.u64 %rd1, [y]; ld.param.u32 %r1, [n]; ld.param.f32 %f1, [f]; ld.param.u32 %r3, [s+4];
      cvt.rzi.s32.f32 %r2, %f1; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
      mov.u32 %r2, %nctaid.y; add.u32 %r1, %r1, %r2; mov.u32 %r2, %dynamic_smem_size;
      add.u32 %r1, %r1, %r2; mov.u32 %r2, %ntid.y; add.u32 %r1, %r1, %r2;
      mov.u32 %r2, %cluster_nctarank; add.u32 %r1, %r1, %r2; st.volatile.global.u32 [%rd1], %r1;
    """
    parameters = ".param .u64 y, .param .u32 n, .param .f32 f, .param .align 4 .b8 s[8]"
    text = kernel(parameters, body, name="first") + kernel("", "", name="second").split("64\n")[1]
    (folder / "two.ptx").write_text(text, encoding="utf-8")
    sizes = ["--grid", "2,3", "--block", "1,4", "--cluster", "2", "--shared", "1000"]
    values = ["y.npy=uint32[1]", "-1", "4.0e1", "bytes:0000000000000100"]
    assert main(["two.ptx", "--entry", "first", *sizes, *values]) == 0
    assert np.load("y.npy")[0] == -1 + 40 + 65536 + 3 + 1000 + 4 + 2


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["x.npy", "y.npy=uint32[8]"], 1, "bounds: "),
        (["x.npy", "y.npy=uint32[100]"], 1, "unwritten: 36 of 100 elements"),
        (["x.npy"], 2, "2 parameters"),
        (["x.npy", "z.npy"], 2, "z.npy"),
        (["x.npy", "nonsense"], 2, "'nonsense' is no argument; give a number"),
        (["x.npy", "y.npy=uint33[8]"], 2, "uint33"),
        (["x.npy", "1", "--entry", "other"], 2, "no entry 'other'"),
        (["x.npy@swizzle=128B", "1"], 2, "without @box="),
        (["x.npy@box=64@colour=red", "1"], 2, "has @colour=red"),
        (["x.npy", "bytes:xyz"], 2, "hexadecimal"),
    ],
)
def test_errors_go_to_standard_error(folder, capsys, options, status, message):
    assert main(["copy.ptx", "--block", "64", *options]) == status
    said = capsys.readouterr()
    assert message in said.err
    assert not said.out
    assert not (folder / "y.npy").exists()


def test_checks_can_be_left_out(folder):
    command = ["copy.ptx", "--block", "64", "x.npy", "y.npy=uint32[100]"]
    assert main([*command, "--without", "unwritten"]) == 0
    assert np.load("y.npy")[63] == 64


def test_syntax_errors_and_files_that_are_not_there(folder, capsys):
    (folder / "bad.ptx").write_text(".version 8.0\n.target sm_80\n.entry k( {", encoding="utf-8")
    assert main(["bad.ptx"]) == 2
    assert "line 3" in capsys.readouterr().err
    assert main(["absent.ptx"]) == 2
    assert "absent.ptx" in capsys.readouterr().err


def test_tensor_map_argument(folder):
    body = """
      .shared .align 128 .b8 tile[512]; .shared .align 8 .b8 full[8];
      ld.param.u64 %rd0, [map]; ld.param.u64 %rd1, [y]; mov.u32 %r1, tile; mov.u32 %r2, full;
      mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;
      mov.u32 %r3, 0;
      cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r1], [%rd0, {%r3, %r3}], [%r2];
    $wait: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0; @!%p1 bra $wait;
      ld.shared.u32 %r4, [%r1+36]; st.global.u32 [%rd1], %r4;
    """
    text = kernel(POINTERS.replace("x", "map", 1), body)
    (folder / "map.ptx").write_text(text, encoding="utf-8")
    np.save("m.npy", np.arange(64, dtype=np.uint32).reshape(8, 8))
    assert main(["map.ptx", "--block", "1", "m.npy@box=8,2@swizzle=none", "y.npy=uint32[1]"]) == 0
    assert np.load("y.npy")[0] == 9


def test_module_runs_as_a_command(folder):
    command = [sys.executable, "-m", "sdpakit.ptxemu", "copy.ptx", "--block", "64"]
    done = subprocess.run(
        [*command, "x.npy", "y.npy=uint32[64]"], capture_output=True, text=True, check=True
    )
    assert "warp instructions" in done.stdout
    assert np.load("y.npy")[0] == 1
