"""One other data pipeline on one RecordIO file, under the control of `benches/benches/data.rs`.

usage: data.py make OUT.rec COUNT PHOTOS...  cuts COUNT parts out of photos, shorter side 256, as JPEG of quality 95
       data.py PEER FILE.rec BATCH THREADS   says `ready`; for each line of standard input it reads the file once to
                                             normalized float32 batches [BATCH, 3, 224, 224] and prints a line of JSON:
                                             images, seconds, the mean of the absolute values of the last batch

Center crop of 224 x 224, mean and deviation of ImageNet in units of bytes. Incomplete batches are left out.
"""

import concurrent.futures
import json
import queue
import random
import struct
import sys
import threading
import time

import numpy as np

SIDE = 224
MEAN = np.array([123.675, 116.28, 103.53], np.float32)
STD = np.array([58.395, 57.12, 57.375], np.float32)
MAGIC = 0xced7230a


def make(out, count, photos):
    import cv2
    source = random.Random(1)
    images = [cv2.imread(photo, cv2.IMREAD_COLOR) for photo in photos]
    with open(out, "wb") as file:
        for number in range(count):
            image = images[number % len(images)]
            height, width = image.shape[:2]
            part_width = source.randint(min(width, 256), width)
            part_height = max(1, min(height, int(part_width * source.choice([3 / 4, 2 / 3, 1, 4 / 3, 9 / 16]))))
            x, y = source.randint(0, width - part_width), source.randint(0, height - part_height)
            part = image[y:y + part_height, x:x + part_width]
            scale = 256 / min(part.shape[:2])
            size = max(256, round(part.shape[1] * scale)), max(256, round(part.shape[0] * scale))
            part = cv2.resize(part, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC)
            jpeg = cv2.imencode(".jpg", part, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
            record = struct.pack("<IfQQ", 0, number % 10, number, 0) + jpeg
            # The magic number at a word of an image would have to be split.
            words = np.frombuffer(record[:len(record) & ~3], "<u4")
            assert not (words == MAGIC).any()
            file.write(struct.pack("<II", MAGIC, len(record)) + record + b"\0" * (-len(record) % 4))


def records(path):
    """The encoded images; the file stays in the page cache."""
    data, at, images = np.fromfile(path, np.uint8), 0, []
    while at < len(data):
        magic, length = struct.unpack_from("<II", data, at)
        assert magic == MAGIC
        images.append(data[at + 8 + 24:at + 8 + length])
        at += 8 + (length + 3 & ~3)
    return images


class Mxnet:
    def __init__(self, path, batch, threads):
        import mxnet
        # Without round_batch the iterator leaves incomplete batches out at the end of the file.
        self.iterator = mxnet.io.ImageRecordIter(
            path_imgrec=path, data_shape=(3, SIDE, SIDE), batch_size=batch, preprocess_threads=threads, shuffle=False,
            mean_r=MEAN[0], mean_g=MEAN[1], mean_b=MEAN[2], std_r=STD[0], std_g=STD[1], std_b=STD[2],
            prefetch_buffer=4, round_batch=False)

    def epoch(self):
        # It reads ahead from here on, so a turn begins with it.
        self.iterator.reset()
        last, count = None, 0
        for batch in self.iterator:
            if batch.pad == 0:
                batch.data[0].wait_to_read()
                last, count = batch.data[0], count + batch.data[0].shape[0]
        return count, last.asnumpy()


class Pool:
    """A thread makes one sample after the other; a finished batch is used while the next is made."""

    def __init__(self, path, batch, threads):
        self.images, self.batch = records(path), batch
        self.pool = concurrent.futures.ThreadPoolExecutor(threads)
        self.prepare()

    def epoch(self):
        whole = len(self.images) // self.batch
        ready = queue.Queue(2)

        def make_batches():
            for ix in range(whole):
                out = self.empty()
                jobs = range(ix * self.batch, (ix + 1) * self.batch)
                list(self.pool.map(lambda job: self.sample(self.images[job], out, job - jobs.start), jobs))
                ready.put(out)

        maker = threading.Thread(target=make_batches)
        maker.start()
        for _ in range(whole):
            last = ready.get()
        maker.join()
        return whole * self.batch, np.asarray(last)


class OpenCv(Pool):
    def prepare(self):
        import cv2
        # The threads of the pool are the only ones.
        cv2.setNumThreads(1)
        self.cv2 = cv2

    def empty(self):
        return np.empty((self.batch, 3, SIDE, SIDE), np.float32)

    def sample(self, image, out, ix):
        pixels = self.cv2.imdecode(image, self.cv2.IMREAD_COLOR)
        y, x = (pixels.shape[0] - SIDE) // 2, (pixels.shape[1] - SIDE) // 2
        pixels = pixels[y:y + SIDE, x:x + SIDE]
        for channel in range(3):
            plane = self.cv2.extractChannel(pixels, 2 - channel)
            # (plane - mean) / deviation by OpenCV's vector code, into the batch.
            self.cv2.addWeighted(plane, 1 / STD[channel], plane, 0, -MEAN[channel] / STD[channel],
                                 dst=out[ix, channel], dtype=self.cv2.CV_32F)


class Torchvision(Pool):
    def prepare(self):
        import torch
        import torchvision
        torch.set_num_threads(1)
        self.torch, self.decode = torch, torchvision.io.decode_jpeg
        self.rgb = torchvision.io.ImageReadMode.RGB
        self.factor = torch.from_numpy(1 / STD)[:, None, None]
        self.mean = torch.from_numpy(MEAN)[:, None, None]

    def empty(self):
        return self.torch.empty((self.batch, 3, SIDE, SIDE))

    def sample(self, image, out, ix):
        pixels = self.decode(self.torch.from_numpy(image), mode=self.rgb)
        y, x = (pixels.shape[1] - SIDE) // 2, (pixels.shape[2] - SIDE) // 2
        pixels = pixels[:, y:y + SIDE, x:x + SIDE]
        self.torch.sub(pixels, self.mean, out=out[ix])
        out[ix].mul_(self.factor)


class Pillow(Torchvision):
    """The usual transforms on pictures of Pillow."""

    def prepare(self):
        super().prepare()
        from PIL import Image
        self.open = Image.open

    def sample(self, image, out, ix):
        import io
        picture = self.open(io.BytesIO(image.data)).convert("RGB")
        x, y = (picture.width - SIDE) // 2, (picture.height - SIDE) // 2
        pixels = np.asarray(picture.crop((x, y, x + SIDE, y + SIDE)))
        self.torch.sub(self.torch.from_numpy(pixels.copy()).permute(2, 0, 1), self.mean, out=out[ix])
        out[ix].mul_(self.factor)


PEERS = {"mxnet-iter": Mxnet, "opencv": OpenCv, "torchvision": Torchvision, "pillow": Pillow}


def main():
    if sys.argv[1] == "make":
        return make(sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    peer = PEERS[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        count, last = peer.epoch()
        seconds = time.perf_counter() - start
        mean = float(np.abs(last, dtype=np.float64).mean())
        print(json.dumps({"images": count, "seconds": seconds, "mean": mean}), flush=True)


main()
