"""COSTA as a shared library whose psgemr2d stands in the place of ScaLAPACK's, for peers.py.

Its release is fetched from its repository and built once, in the build directory; RESHARD_COSTA may name a
libcosta_scalapack.so that is there."""

import glob
import hashlib
import os
import shutil
import subprocess
import tarfile
import urllib.request

VERSION, SHA256 = "2.3.0", "0413311a2821d4cd1f3f026672a75a5b5a2956f61305c07d7fc14565a126b517"
URL = f"https://github.com/eth-cscs/COSTA/archive/refs/tags/v{VERSION}.tar.gz"
SCALAPACK = ("scalapack-openmpi", "scalapack")


class Lacking(Exception):
    """Says why there is no COSTA here."""


def scalapack_library():
    """ScaLAPACK's shared library, which COSTA is linked to: where the linker finds it."""
    for name in SCALAPACK:
        said = subprocess.run(["cc", f"-print-file-name=lib{name}.so"], stdout=subprocess.PIPE, text=True, check=False).stdout
        if os.path.isabs(said.strip()):
            return said.strip()
    raise Lacking("no ScaLAPACK to link it to; on Debian: libscalapack-openmpi-dev")


def fetch(archive):
    try:
        with urllib.request.urlopen(URL, timeout=20) as source, open(archive, "wb") as file:
            shutil.copyfileobj(source, file)
    except OSError as error:
        raise Lacking(f"its release {VERSION} cannot be fetched here: {getattr(error, 'reason', error)}") from None
    with open(archive, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    if digest != SHA256:
        raise Lacking(f"what was fetched as release {VERSION} has the SHA-256 {digest}, not {SHA256}")


def build(command, directory, environment):
    done = subprocess.run(command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        said = [line.strip() for line in done.stdout.splitlines() if "rror" in line] or [done.stdout.strip()[-200:]]
        raise Lacking(f"its release {VERSION} does not build here: {said[0][:200]}")


def costa_library(directory):
    """The path of its library with ScaLAPACK's names, built in the directory where it is not yet."""
    given = os.environ.get("RESHARD_COSTA")
    if given:
        if not os.path.exists(given):
            raise Lacking(f"RESHARD_COSTA: no file {given}")
        return os.path.abspath(given)
    built = os.path.join(directory, "build", "src", "costa", "libcosta_scalapack.so")
    if os.path.exists(built):
        return built
    links, scalapack = os.path.join(directory, "scalapack", "lib"), scalapack_library()
    os.makedirs(links, exist_ok=True)
    if shutil.which("cmake") is None:
        raise Lacking("no cmake to build it with")
    archive = os.path.join(directory, "costa.tar.gz")
    if not os.path.exists(archive):
        fetch(archive + ".part")
        os.rename(archive + ".part", archive)
    with tarfile.open(archive) as file:
        file.extractall(directory)
    link = os.path.join(links, "libscalapack.so")  # the name that it looks for
    if not os.path.lexists(link):
        os.symlink(scalapack, link)
    environment = {**os.environ, "SCALAPACK_ROOT": os.path.dirname(links), "SCALAPACKROOT": os.path.dirname(links)}
    source = glob.glob(os.path.join(directory, "COSTA-*", ""))[0]
    build(["cmake", "-S", source, "-B", "build", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON",
           "-DCOSTA_SCALAPACK=CUSTOM"], directory, environment)
    build(["cmake", "--build", "build", "-j", str(os.cpu_count() or 1)], directory, environment)
    if not os.path.exists(built):
        raise Lacking(f"its release {VERSION} builds no libcosta_scalapack.so")
    return built
