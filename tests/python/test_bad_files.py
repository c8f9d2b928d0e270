"""Files that are damaged, that are bombs, that lie about themselves, or that are no files."""

import gzip
import io
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import bayescaffe
import lmdb
import numpy as np
import pytest
from bayescaffe import cli
from bayescaffe.common.errors import BayesCaffeError
from bayescaffe.common.files import sha256
from bayescaffe.common.limits import limit
from bayescaffe.common.printing import printable
from bayescaffe.common.reading import open_regular, read_bytes
from bayescaffe.data.description import read_description
from bayescaffe.data.digests import images_sha256
from bayescaffe.data.idx import load_set
from bayescaffe.data.image_files import _plain, decode
from bayescaffe.stats.draws import load_draws, save_draws
from bayescaffe.training.log import parse_log
from conftest import PLAIN_ENVIRONMENT, REPO, make_net, write_digits
from hostile_files import ESCAPE, draws_bomb, idx_bomb, png, special_files
from PIL import Image

PROBABILITIES = np.random.default_rng(0).dirichlet(np.ones(3), (50, 20)).astype(np.float32)
TWO = [{"net": "n", "weights": "a"}, {"net": "n", "weights": "b"}]
OF_DRAW = [0, 1] * 25


def run(code, **environment):
    """A Python program; its exit code is negative if a signal ended it."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**PLAIN_ENVIRONMENT, **environment},
    )


LOAD_IDX = "idx.load_set(__import__('pathlib').Path('{}'))"


def peak_of(code, **environment):
    """The output of a Python program, and the bytes of memory that `code` took at most."""
    program = f"""
import io, resource, numpy as np
import bayescaffe
from bayescaffe.data import idx, image_files
from bayescaffe.stats import draws
from PIL import Image
Image.init()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {code}
except bayescaffe.BayesCaffeError as error:
    print(error)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    done = run(program, **environment)
    assert done.returncode == 0, done.stderr
    *told, peak = done.stdout.splitlines()
    return "\n".join(told), int(peak)


# What is not a file


def test_only_files_are_opened(tmp_path):
    special = special_files(tmp_path)
    for kind in ("pipe", "device"):
        with pytest.raises(BayesCaffeError, match=f"{special[kind]}: is a {kind}, expected a file"):
            open_regular(special[kind])
    with pytest.raises(OSError):  # nobody can open a socket
        open_regular(special["socket"])
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        open_regular(tmp_path)
    with pytest.raises(BayesCaffeError, match=r"a\\x00b: is not the name of a file"):
        open_regular("a\0b")
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "link") == b"1"


@pytest.mark.parametrize(
    "command",
    [
        "analyze ZERO",
        "analyze PIPE",
        "report ZERO",
        "report draws.npz --curve PIPE",
        "check PIPE",
        "inspect ZERO",
        "data folder PIPE --out out --size 8",
        "data array ZERO ZERO --out out",
    ],
)
def test_commands_refuse_what_is_no_file(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    save_draws("draws.npz", PROBABILITIES, None, {})
    os.mkfifo("PIPE")
    words = ["/dev/zero" if word == "ZERO" else word for word in command.split()]
    assert cli.main(words) == 1
    told = "".join(capsys.readouterr())
    assert "expected a file" in told or "no such file" in told


# Files that are larger inside


def test_a_picture_of_many_pixels_is_refused(tmp_path):
    (tmp_path / "bomb.png").write_bytes(png(20_000, 30_000))
    code = f"image_files.decode(open({str(tmp_path / 'bomb.png')!r}, 'rb').read(), 3, (8, 8))"
    told, peak = peak_of(code)
    assert "has 20000 x 30000 pixels, more than the 100000000 that are allowed" in told
    assert "`with bayescaffe.limits(max_pixels=600000000):` allows it" in told
    assert peak < 2e7


def test_a_picture_takes_twice_its_limit_of_memory(tmp_path):
    """The limit is 4 bytes a pixel, as a library holds them."""
    picture = Image.new("RGBA", (5000, 4000), (1, 2, 3, 100))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.save(tmp_path / "large.png", exif=exif)
    content = f"open({str(tmp_path / 'large.png')!r}, 'rb').read()"
    told, peak = peak_of(f"print(image_files.decode({content}, 3, (8, 8)).shape)")
    assert told == "(3, 8, 8)"
    assert peak < 2.1 * 4 * 5000 * 4000


def test_the_limit_of_pixels_can_be_changed(tmp_path, capsys):
    content = png(300, 200)
    with bayescaffe.limits(max_pixels=59_999), pytest.raises(BayesCaffeError, match="300 x 200"):
        decode(content)
    with bayescaffe.limits(max_pixels=60_000):
        assert decode(content).shape == (1, 200, 300)
    assert (limit("max_pixels"), limit("max_unpacked")) == (100_000_000, 2**30)
    for name in "ab":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "pictures" / name / f"{number}.png").write_bytes(content)
    command = [
        "data",
        "folder",
        str(tmp_path / "pictures"),
        "--size",
        "8",
        "--strict",
        "--max-pixels",
    ]
    assert cli.main([*command, "59999", "--out", str(tmp_path / "out")]) == 1
    assert "--max-pixels 60000 allows it" in capsys.readouterr().err
    assert cli.main([*command, "60000", "--out", str(tmp_path / "out")]) == 0


def test_pillows_own_limit_stays(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert decode(png(30, 20)).shape == (1, 20, 30)
    assert Image.MAX_IMAGE_PIXELS == 10


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "1"])
def test_a_large_picture_is_converted_in_strips(monkeypatch, mode):
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (37, 11, 4), np.uint8), "RGBA")
    if mode == "I;16":
        image = Image.fromarray(random.integers(0, 65536, (37, 11), np.uint16))
    elif mode == "P":
        image = image.convert("RGB").quantize(7)
        image.info["transparency"] = 3
    else:
        image = image.convert(mode)
    for channels in (None, 1, 3):
        monkeypatch.setattr("bayescaffe.data.image_files.STRIP_PIXELS", 2**22)
        whole = np.asarray(_plain(image, channels))
        monkeypatch.setattr("bayescaffe.data.image_files.STRIP_PIXELS", 55)
        assert np.array_equal(_plain(image, channels), whole)


def test_an_idx_file_that_unpacks_to_much_is_refused(tmp_path):
    idx_bomb(tmp_path, 40)
    told, peak = peak_of(LOAD_IDX.format(tmp_path), BAYESCAFFE_MAX_UNPACKED="30000000")
    assert "train-images-idx3-ubyte.gz: unpacks to 40000016 bytes, more than the 30000000" in told
    assert peak < 2e7


def test_an_idx_file_is_not_unpacked_beyond_what_it_promises(tmp_path):
    idx_bomb(tmp_path, 60, promised=4)
    told, peak = peak_of(LOAD_IDX.format(tmp_path))
    assert "at least 4000017 bytes, but its dimensions 4x1000x1000 need 4000016" in told
    assert peak < 3e7


def test_the_files_of_a_set_unpack_to_one_sum(tmp_path):
    write_digits(tmp_path, train=4, test=2, size=12, classes=2)
    for path in list(tmp_path.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    most = 4 * 144 + 4 + 2 * 144 + 16  # two arrays, and the third with its header
    with bayescaffe.limits(max_unpacked=most):
        load_set(tmp_path)
    with (
        bayescaffe.limits(max_unpacked=most - 1),
        pytest.raises(BayesCaffeError, match=f"t10k-images.*unpacks to {most} bytes"),
    ):
        load_set(tmp_path)


def test_compressed_draws_that_unpack_to_much_are_refused(tmp_path):
    path = tmp_path / "bomb.npz"
    draws_bomb(path, 10)
    told, peak = peak_of(f"draws.load_draws({str(path)!r})", BAYESCAFFE_MAX_UNPACKED="30000000")
    assert "bomb.npz: unpacks to 40000128 bytes, more than the 30000000 that are" in told
    assert peak < 2e7


def test_an_array_that_promises_more_than_it_has_is_refused(tmp_path):
    head = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**40)}
    np.lib.format.write_array_header_1_0(head, fields)
    (tmp_path / "x.npy").write_bytes(head.getvalue() + bytes(100))
    with pytest.raises(BayesCaffeError, match=f"its header needs {2**82 + 128}"):
        bayescaffe.open_images(tmp_path / "x.npy")


def image_data(folder, picture):
    """A net that reads a picture with ImageData."""
    (folder / "list.txt").write_text(f"{picture} 0\n")
    (folder / "net.prototxt").write_text(
        f"""layer {{ name: "data" type: "ImageData" top: "data" top: "label"
                     image_data_param {{ source: "{folder}/list.txt" batch_size: 1 }} }}"""
    )
    return str(folder / "net.prototxt")


def test_caffe_refuses_pictures_of_many_pixels(tmp_path, monkeypatch):
    caffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    Image.new("RGB", (300, 200)).save(tmp_path / "x.jpg")
    for name, content in (
        ("x.png", png(300, 200)),
        ("x.jpg", None),
        ("bomb.png", png(30_000, 20_000)),
    ):
        if content:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(
        caffe.Error, match="bomb.png: has 30000 x 20000 pixels, more than the 100000000"
    ):
        caffe.Net(image_data(tmp_path, tmp_path / "bomb.png"), caffe.TEST)
    for name in ("x.png", "x.jpg"):
        net = image_data(tmp_path, tmp_path / name)
        monkeypatch.setenv("BAYESCAFFE_MAX_PIXELS", "59999")
        with pytest.raises(caffe.Error, match=f"{name}: has .* set BAYESCAFFE_MAX_PIXELS=60000"):
            caffe.Net(net, caffe.TEST)
        monkeypatch.setenv("BAYESCAFFE_MAX_PIXELS", "60000")
        assert caffe.Net(net, caffe.TEST).blobs["data"].data.shape == (1, 3, 200, 300)


def test_caffe_reads_pictures_from_files_only(tmp_path):
    """It read /dev/zero until memory was full."""
    caffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(caffe.Error, match=f"{path} is not a file"):
            caffe.Net(image_data(tmp_path, path), caffe.TEST)
    net = Path(image_data(tmp_path, "x.png"))
    net.write_text(net.read_text().replace(f"{tmp_path}/list.txt", "/dev/zero"))
    with pytest.raises(caffe.Error, match="layer 'data': .*/dev/zero is not a file"):
        caffe.Net(str(net), caffe.TEST)


# Draws files


@pytest.fixture
def draws_file(tmp_path):
    path = tmp_path / "draws.npz"
    save_draws(path, PROBABILITIES, np.arange(20) % 3, {"seed": 1})
    return path


def test_a_changed_byte_of_draws_is_noticed(draws_file):
    content = bytearray(draws_file.read_bytes())
    content[3000] ^= 1
    draws_file.write_bytes(content)
    with pytest.raises(BayesCaffeError, match="'probabilities' is damaged.*checksum"):
        load_draws(draws_file)


def truncated_in_use(folder, use, in_memory):
    """What a program says that uses draws of a file which is truncated after loading."""
    path = folder / "draws.npz"
    probabilities = np.full((50, 20_000, 3), 1 / 3, np.float32)
    save_draws(path, probabilities, np.zeros(20_000, int), {})
    done = run(f"""
import os, bayescaffe
from bayescaffe.common import npz
npz.IN_MEMORY = {in_memory}
path = {str(path)!r}
draws = bayescaffe.load_draws(path)
analysis = bayescaffe.analyze(draws, progress=False)
os.truncate(path, 5000)
try:
    {use}
except bayescaffe.BayesCaffeError as error:
    print(error)
""")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_draws_in_memory_stay_when_their_file_is_truncated(tmp_path):
    """The process ended with SIGBUS."""
    use = "print(round(float(draws.probabilities.sum(dtype=float))))"
    assert truncated_in_use(tmp_path, use, 2**30) == "1000000\n"


@pytest.mark.parametrize(
    "use",
    [
        "bayescaffe.analyze(draws, progress=False)",
        "bayescaffe.report(path + '.html', draws, analysis)",
        "sum(len(part) for _, part in draws.parts())",
    ],
)
def test_large_draws_that_are_truncated_while_in_use_are_an_error(tmp_path, use):
    """`analyze` ended with SIGBUS."""
    told = f"{tmp_path / 'draws.npz'}: truncated while it was in use\n"
    assert truncated_in_use(tmp_path, use, 0) == told


def test_images_in_memory_stay_when_their_file_is_truncated(tmp_path):
    """The process ended with SIGBUS."""
    path = tmp_path / "images.npy"
    np.save(path, np.ones((500, 40, 40), np.uint8))
    done = run(f"""
import os, bayescaffe
images = bayescaffe.open_images({str(path)!r})
os.truncate({str(path)!r}, 200)
print(images.read(range(500)).sum())
""")
    assert (done.returncode, done.stdout) == (0, "800000\n"), done.stderr


@pytest.mark.parametrize("order", "<>")
def test_text_that_is_no_text_is_refused(tmp_path, order):
    """It was a SystemError in Python's JSON reader."""
    meta = np.frombuffer(np.array([ord("{"), 0x110000, ord("}")], f"{order}u4"), f"{order}U3")
    np.savez(tmp_path / "x.npz", probabilities=PROBABILITIES, meta=meta.reshape(()))
    with pytest.raises(BayesCaffeError, match="'meta' is damaged.*it has the character 0x110000"):
        load_draws(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "meta, message",
    [
        ({"names": 7}, "'names' in its meta is 7, expected a list of texts or null"),
        ({"names": ["a", 1]}, "'names' in its meta is"),
        ({"net_sha256": 5}, "'net_sha256' in its meta is 5, expected a text"),
        ({"names": ["a"]}, "1 names in its meta, expected 20"),
        ({"class_names": ["a"] * 4}, "4 class_names in its meta, expected 3"),
        ({"models": 5, "model_of_draw": OF_DRAW}, "'models' in its meta is 5, expected a list of"),
        (
            {"models": [], "model_of_draw": OF_DRAW},
            r"'models' in its meta is \[\], expected a list",
        ),
        ({"models": ["a", "b"], "model_of_draw": OF_DRAW}, "'models' in its meta is"),
        ({"model_of_draw": OF_DRAW}, "'models' in its meta is None"),
        ({"models": [{"weights": 7}], "model_of_draw": OF_DRAW}, "'weights' in its meta is 7"),
        ({"models": TWO}, "'model_of_draw' in its meta is None, expected a number within 0..1 for"),
        ({"models": TWO, "model_of_draw": OF_DRAW[1:]}, "for each of 50 draws"),
        ({"models": TWO, "model_of_draw": [2, *OF_DRAW[1:]]}, r"is \[2, 1, .*within 0..1 for"),
        ({"models": TWO, "model_of_draw": ["0", *OF_DRAW[1:]]}, "'model_of_draw' in its meta is"),
    ],
)
def test_metadata_of_another_type_is_refused(tmp_path, meta, message):
    save_draws(tmp_path / "x.npz", PROBABILITIES, None, meta)
    with pytest.raises(BayesCaffeError, match=message):
        bayescaffe.analyze(tmp_path / "x.npz")


# What a report reads


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """Pictures that nobody sampled."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(1).integers(0, 256, (20, 1, 12, 12), np.uint8)
    np.save("secret.npy", images)
    return tmp_path / "secret.npy"


def report_of(caplog, **meta):
    save_draws("draws.npz", PROBABILITIES, np.arange(20) % 3, meta)
    with caplog.at_level(logging.INFO):
        assert cli.main(["report", "draws.npz"]) == 0
    return Path("report.html").read_text()


def test_a_report_shows_images_that_were_sampled(secret, caplog):
    known = images_sha256(bayescaffe.open_images(secret))
    assert known == sha256(secret)
    assert "<img" in report_of(caplog, data=str(secret), data_sha256=known)


@pytest.mark.parametrize("digest", [None, "0" * 64, ""])
def test_a_path_in_draws_is_no_reason_to_show_a_file(secret, caplog, digest):
    assert "<img" not in report_of(caplog, data=str(secret), data_sha256=digest)
    assert "no images: " in caplog.text


def test_a_report_does_not_read_devices(secret, caplog):
    """It read /dev/zero until memory was full."""
    names = ("net", "weights", "data")
    report_of(caplog, **dict.fromkeys(names, "/dev/zero"), **{f"{n}_sha256": "0" for n in names})
    assert "no layers: /dev/zero: is a device, expected a file" in caplog.text


def test_weights_in_draws_are_not_read_for_a_net_that_is_named(secret, capsys):
    save_draws("draws.npz", PROBABILITIES, None, {"weights": str(secret), "weights_sha256": "0"})
    Path("net.prototxt").write_text("")
    assert cli.main(["report", "draws.npz", "--net", "net.prototxt"]) == 1
    assert f"{secret} has changed since it was sampled" in capsys.readouterr().err


def test_image_files_have_a_hash_of_names_and_contents(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png(4, 4))
    before = images_sha256(bayescaffe.open_images(tmp_path))
    assert images_sha256(bayescaffe.open_images(tmp_path)) == before
    (tmp_path / "b.png").write_bytes(png(4, 5))
    changed = images_sha256(bayescaffe.open_images(tmp_path))
    (tmp_path / "b.png").rename(tmp_path / "c.png")
    renamed = images_sha256(bayescaffe.open_images(tmp_path))
    assert len({before, changed, renamed}) == 3
    assert images_sha256(bayescaffe.open_images(np.zeros((2, 1, 4, 4), np.uint8))) is None


# Terminals


def test_printable_text():
    assert printable(ESCAPE) == r"\x1b[31mred\x9b2J"
    assert printable("a\tb\nä€ \N{GRINNING FACE}") == "a\tb\nä€ \N{GRINNING FACE}"
    assert printable("\r\u202etxt.exe\udcff") == r"\r\u202etxt.exe\udcff"


def test_errors_are_printable():
    assert str(BayesCaffeError(f"{ESCAPE}: missing")) == r"\x1b[31mred\x9b2J: missing"


def test_commands_print_no_escapes_from_files(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        folder = tmp_path / "pictures" / f"{number}{ESCAPE}"
        folder.mkdir(parents=True)
        for name in range(3):
            (folder / f"{name}{ESCAPE}.png").write_bytes(png(4, 4))
        (folder / f"bad{ESCAPE}.png").write_bytes(b"1")
    save_draws(f"{ESCAPE}.npz", PROBABILITIES, None, {"class_names": [ESCAPE] * 3})
    bad = Path(tmp_path, os.fsdecode(b"\xff\xfe.npz"))
    bad.write_bytes(b"1")
    for command in (
        ["data", "folder", "pictures", "--out", "out", "--size", "4"],
        ["analyze", f"{ESCAPE}.npz"],
        ["analyze", f"missing{ESCAPE}"],
        ["analyze", str(bad)],
        ["report", f"{ESCAPE}.npz"],
    ):
        cli.main(command)
    out, err = capfd.readouterr()
    assert r"\x1b[31mred" in out and r"\x1b[31mred" in err
    assert not {"\x1b", "\x9b"} & set(out + err)


# LMDBs


def flipped_lmdb(path, offset, value):
    content = bytearray(path.read_bytes())
    content[offset] = value
    path.write_bytes(content)


PAGE = 4096


def test_an_lmdb_that_claims_a_large_map_takes_none(tmp_path, digits):
    """The size of the map in its head may be damaged, and LMDB would reserve as much."""
    copy = tmp_path / "lmdb"
    shutil.copytree(digits / "train_lmdb", copy)
    for head in (0, PAGE):
        flipped_lmdb(copy / "data.mdb", head + 16 + 16 + 6, 255)
    layer = f"""layer {{ name: "d" type: "Data" top: "d" top: "l"
                data_param {{ source: "{copy}" batch_size: 5 backend: LMDB }} }}"""
    assert make_net(tmp_path, layer).blobs["d"].data.shape == (5, 1, 12, 12)


@pytest.mark.parametrize(
    "place, value, message",
    [
        # Of the second head, which is newer: page size, depth, root, last page.
        (PAGE + 40, 1, "its page size is"),
        (PAGE + 16 + 24 + 48 + 6, 9, "is not a branch"),
        (PAGE + 16 + 24 + 48 + 46, 7, "names pages that are not there"),
        (PAGE + 16 + 120, 3, "names pages that are not there"),
        (PAGE + 16 + 126, 7, "its head tells of page 19703248"),
        # Of each page of the tree: number, kind, bounds, the place of the first entry.
        ("page", (3, 1), "has another number"),
        ("page", (10, 1 | 2), "is not a "),
        ("page", (13, 255), "has impossible bounds"),
        ("page", (17, 255), "has an entry outside of itself"),
    ],
)
def test_damaged_pages_are_named(tmp_path, digits, place, value, message):
    caffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    content = (digits / "train_lmdb/data.mdb").read_bytes()
    path = tmp_path / "data.mdb"
    path.write_bytes(content)
    newest = np.frombuffer(content, np.uint64, 17, PAGE + 16)
    assert newest[-1] > np.frombuffer(content, np.uint64, 17, 16)[-1], "the second head is newer"
    if place == "page":
        offset, value = value
        place = int(newest[14]) * PAGE + offset  # the root
    assert caffe.lmdb_fault(str(tmp_path)) == ""
    flipped_lmdb(path, place, value)
    assert message in caffe.lmdb_fault(str(tmp_path))
    with pytest.raises(BayesCaffeError, match=f"{tmp_path}: .*{message}"):
        bayescaffe.open_images(tmp_path)
    net = f"""layer {{ name: "data" type: "Data" top: "data"
                       data_param {{ source: "{tmp_path}" batch_size: 1 backend: LMDB }} }}"""
    (tmp_path / "net.prototxt").write_text(net)
    with pytest.raises(caffe.Error, match=f"layer 'data': LMDB {tmp_path} is .*{message}"):
        caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST)


@pytest.mark.parametrize("size", [1, 700, 2000, 5000, 100_000])
@pytest.mark.parametrize("records", [0, 1, 5, 300])
def test_good_lmdbs_have_no_fault(tmp_path, size, records):
    """Also those in which records were removed and replaced."""
    caffe = pytest.importorskip("caffe", reason="pycaffe is not built")
    random = np.random.default_rng(0)
    for subdir in (True, False):
        path = tmp_path / f"x{subdir}"
        with lmdb.open(str(path), map_size=2**27, subdir=subdir) as env:
            for _ in range(3):
                with env.begin(write=True) as transaction:
                    for number in random.permutation(records).tolist():
                        key = b"%05d" % number * random.integers(1, 20)
                        transaction.put(key, random.bytes(random.integers(0, size)))
                    for number in random.permutation(records).tolist()[: records // 3]:
                        transaction.delete(b"%05d" % number)
                assert caffe.lmdb_fault(str(path)) == ""


# Other damage


def test_blobs_of_another_shape_are_named(tmp_path):
    pytest.importorskip("caffe", reason="pycaffe is not built")
    from bayescaffe.net.messages import parse_message, read_weights

    for shape in ("dim: 3", "dim: -1", "dim: 4611686018427387904 dim: 4", ""):
        blob = f"shape {{ {shape} }} data: 1 data: 2"
        net = parse_message(f'layer {{ name: "x" blobs {{ {blob} }} }}', "NetParameter")
        (tmp_path / "x.caffemodel").write_bytes(net.SerializeToString())
        with pytest.raises(
            BayesCaffeError, match="x.caffemodel: damaged: a blob of layer 'x' has 2"
        ):
            read_weights(tmp_path / "x.caffemodel")


def test_a_damaged_line_of_a_log_is_left_out(tmp_path):
    head = "I20261116 07:59:35.963258 18020 solver.cpp:241] "
    lines = [
        f"{head}Iteration {k}, loss = {k}.5\n{head}Iteration {k}, lr = 0.1\n" for k in range(3)
    ]
    lines[1] = lines[1].replace("1.5", "1\x92.5")
    lines.insert(0, f"{head}    Mean of 2 draws: error = 0.5, loss = 1\n")
    (tmp_path / "x.log").write_bytes("".join(lines).encode("latin1"))
    curve = parse_log(tmp_path / "x.log")
    assert curve["iteration"].tolist() == [0, 1, 2]
    assert np.array_equal(curve["loss"], [0.5, np.nan, 2.5], equal_nan=True)


@pytest.mark.parametrize("name", ["net.prototxt", "draws.npz", "dataset.json"])
def test_deep_nesting_is_no_traceback(tmp_path, name):
    """Where it is read, Python's limit of recursion was."""
    from bayescaffe.net.prototext import field_names

    if name == "net.prototxt":
        assert field_names("a {" * 10_000 + "}" * 10_000) == set()
    elif name == "dataset.json":
        (tmp_path / name).write_text("[" * 100_000)
        with pytest.raises(BayesCaffeError, match="dataset.json: damaged: it is nested too deeply"):
            read_description(tmp_path)
    else:
        np.savez(tmp_path / name, probabilities=PROBABILITIES, meta=np.array("[" * 100_000))
        with pytest.raises(BayesCaffeError, match="its meta is not JSON: it is nested too deeply"):
            load_draws(tmp_path / name)


@pytest.mark.parametrize(
    "change",
    [{"bytes": 7}, {"shape": 7}, {"shape": ["a"]}, {"classes": "4"}, {"train_images": None}],
)
def test_a_record_that_is_wrong_is_written_anew(tmp_path, digits, change):
    bayescaffe.data.prepare_idx(digits / "idx", tmp_path, progress=False)
    path = tmp_path / "dataset.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good | change))
    bayescaffe.data.prepare_idx(digits / "idx", tmp_path, progress=False)
    assert json.loads(path.read_text()) == good


@pytest.mark.parametrize(
    "value", [10**400, float("inf"), float("nan")], ids=["large", "inf", "nan"]
)
def test_numbers_of_a_description_are_numbers(tmp_path, digits, value):
    content = json.loads((digits / "train_lmdb/dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps({**content, "mean": [value]}))
    with pytest.raises(BayesCaffeError, match="mean is .* expected a list of numbers"):
        read_description(tmp_path)


@pytest.mark.parametrize(
    "header", [b"{'descr': '<f4', 'shape': (", b"\x00" * 30, b"{(1" + b"(" * 90]
)
def test_a_header_of_an_array_that_is_no_python_is_an_error(tmp_path, header):
    """tokenize.TokenError, SyntaxError and others."""
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(BayesCaffeError, match="x.npy: damaged, or not an array"):
        bayescaffe.open_images(tmp_path / "x.npy")


# All kinds


def test_damaged_files_are_errors_for_the_user():
    """A sample; the script tells more."""
    pytest.importorskip("caffe", reason="pycaffe is not built")
    script = REPO / "tests/faults/flip_files.py"
    done = subprocess.run(
        [sys.executable, str(script), "--trials", "3"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
