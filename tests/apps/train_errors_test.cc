// Bad input: one line that says what is wrong and what to do, from one rank, and an end with exit code 1.

#include <sys/stat.h>

#include <limits>
#include <map>

#include "tests/apps/train_testing.h"
#include "tests/support/environment.h"

namespace kolo::testing {
namespace {

/// IDX images without a picture; made on the spot because some of these files are damaged.
std::string idx_images(std::uint8_t magic, std::uint8_t count, std::size_t bytes) {
  std::string file{0, 0, static_cast<char>(magic), 3, 0, 0, 0, static_cast<char>(count), 0, 0, 0, 28, 0, 0, 0, 28};
  return file + std::string(bytes, '\1');
}

class TrainErrors : public ::testing::Test {
 protected:
  /// The one problem that `ranks` ranks report; DIR stands for the test's folder.
  std::string problem(int ranks, const std::string& flags, const std::string& environment = "") {
    const auto done = train(folder_, ranks, flags, environment);
    return only_problem(done);
  }

  std::string only_problem(const Finished& done) {
    EXPECT_EQ(done.code, 1) << done.err;
    EXPECT_EQ(done.err.find("terminate called"), std::string::npos) << done.err;
    const auto problems = done.problems();
    EXPECT_EQ(problems.size(), 1u) << done.err;
    return problems.empty() ? "none" : without_folder(problems.front());
  }

  std::string without_folder(std::string text) const { return without(folder_, std::move(text)); }

  std::string path(std::string_view name) const { return fmt::format("'{}'", (folder_ / name).string()); }

  TempFolder folder_;
};

TEST_F(TrainErrors, ManyRanksSpeakOnce) {
  EXPECT_EQ(problem(3, "--data " + path("none")),
            "cannot read DIR/none (No such file or directory); name a folder with MNIST's IDX files");
}

TEST_F(TrainErrors, Flags) {
  EXPECT_EQ(problem(0, "--no-such-flag=3"), "unknown flag '--no-such-flag=3'; --help lists them all");
  EXPECT_EQ(problem(0, "--sav x"), "unknown flag '--sav'; --help lists them all");
  EXPECT_EQ(problem(0, "word"), "'word' belongs to no flag; write --flag value (--help lists the flags)");
  EXPECT_EQ(problem(0, "--lr"), "the required argument for option '--lr' is missing; --help shows how to write it");
  EXPECT_EQ(problem(0, "--lr 1 --lr 2"), "--lr is given twice; keep one");
  EXPECT_EQ(problem(0, "--log x --save x"), "--log and --save both name x; give each a file of its own");
}

TEST_F(TrainErrors, ADeviceThatIsNotThere) {
  const std::string none(
      "--device cuda finds no GPU (a build without CUDA, no driver, or none that this process may see); look at "
      "nvidia-smi and CUDA_VISIBLE_DEVICES, or leave it out");
  EXPECT_EQ(problem(2, "--device cuda", "CUDA_VISIBLE_DEVICES= "), none);
  EXPECT_EQ(problem(0, "--device gpu"), "--device: unknown device 'gpu' (known: cpu, cuda); choose one of them");
  EXPECT_EQ(problem(0, "--tf32"), "--tf32 means nothing to --device cpu (it is for cuda); leave it out");
}

TEST_F(TrainErrors, Values) {
  const std::string batch = "; it takes a whole number from 1 to 1000000000";
  EXPECT_EQ(problem(0, "--batch 0"), "--batch is '0'" + batch);
  EXPECT_EQ(problem(0, "--batch -3"), "--batch is '-3'" + batch);
  EXPECT_EQ(problem(0, "--batch 3x"), "--batch is '3x'" + batch);
  EXPECT_EQ(problem(0, "--batch 99999999999999999999"), "--batch is '99999999999999999999'" + batch);
  EXPECT_EQ(problem(0, "--lr abc"), "--lr is 'abc'; it takes a number above 0, such as 0.1 or 1e-3");
  EXPECT_EQ(problem(0, "--lr nan"), "--lr is 'nan'; it takes a number above 0, such as 0.1 or 1e-3");
  EXPECT_EQ(problem(0, "--momentum 1"), "--momentum is '1'; it takes a number from 0 to below 1; 0.9 is usual");
  EXPECT_EQ(problem(0, "--steps -1"), "--steps is '-1'; it takes a whole number from 0 to 1000000000000");
  EXPECT_EQ(problem(0, "--eval-every 0"), "--eval-every is '0'; it takes a whole number from 1 to 1000000000000");
  EXPECT_EQ(problem(0, "--seed -1"), "--seed is '-1'; it takes a whole number from 0 to 18446744073709551615");
  EXPECT_EQ(problem(0, "--sizes 784,,10"),
            "--sizes is '784,,10'; it takes the width of each layer, such as 784,1024,1024,10");
  EXPECT_EQ(problem(0, "--data ''"), "--data is ''; it takes a file or folder");
  EXPECT_EQ(problem(0, "--order random"),
            "--order: unknown order 'random' (known: shuffled, sequential); choose one of them");
  EXPECT_EQ(problem(0, "--optimizer adagrad"),
            "--optimizer: unknown optimizer 'adagrad' (known: adam, adamw, sgd); choose one of them");
  EXPECT_EQ(problem(0, "--model nosuch"),
            "--model: unknown model 'nosuch' (known: cnn, llama, mlp); choose one of them");
  for (const char* flag : {"--wire", "--precision"}) {
    EXPECT_EQ(problem(0, fmt::format("{} f64", flag)),
              fmt::format("{}: unknown precision 'f64' (known: f32, bf16, f16); choose one of them", flag));
  }
}

TEST_F(TrainErrors, Sizes) {
  EXPECT_EQ(problem(0, "--sizes 100,10"),
            "sizes 100,10 do not fit the data (784 inputs and 10 classes); the first size must be 784, the last at "
            "least 10");
  ASSERT_EQ(train(folder_, 0, "--sizes 784,16,10 --steps 0 --save " + path("a.safetensors")).code, 0);
  EXPECT_EQ(train(folder_, 0, "--sizes 784,16,10 --steps 0 --init " + path("a.safetensors")).code, 0);
  EXPECT_EQ(problem(0, "--sizes 784,32,10 --init " + path("a.safetensors")),
            "--sizes 784,32,10 contradicts --init DIR/a.safetensors (which holds 784,16,10); leave --sizes out");
  write_file(folder_ / "text", "this is not a safetensors file");
  EXPECT_EQ(problem(0, "--init " + path("text")).substr(0, 21), "cannot read DIR/text ");
}

TEST_F(TrainErrors, Data) {
  EXPECT_EQ(problem(0, "--data " + path("")).substr(0, 28), "DIR/ has no digits to train ");
  write_file(folder_ / "t10k-labels-idx1-ubyte", std::string{0, 0, 8, 1, 0, 0, 0, 2, 7, 3});
  write_file(folder_ / "t10k-images-idx3-ubyte", idx_images(8, 2, 2 * 784 - 1));
  EXPECT_NE(problem(0, "--data " + path("")).find("DIR/t10k-images-idx3-ubyte"), std::string::npos);
  write_file(folder_ / "t10k-images-idx3-ubyte", idx_images(9, 2, 2 * 784));
  EXPECT_NE(problem(0, "--data " + path("")).find("DIR/t10k-images-idx3-ubyte"), std::string::npos);
}

TEST_F(TrainErrors, FoldersThatAreNone) {
  write_file(folder_ / "file", "");
  EXPECT_EQ(problem(0, "--checkpoint " + path("file")),
            "cannot write to DIR/file (Not a directory); name a folder that is writable and has room");
  EXPECT_EQ(problem(0, "--tensorboard " + path("file/x")),
            "cannot write events to DIR/file/x (Not a directory); give --tensorboard a folder that is writable and has "
            "room");
}

TEST_F(TrainErrors, ModelsThatAreFarTooLarge) {
  if (sanitized) GTEST_SKIP() << "a sanitizer's allocator ends the process instead of throwing std::bad_alloc";
  EXPECT_EQ(problem(0, "--sizes 784,16000000,400000,10 --optimizer adam"),
            "there is not enough memory; use smaller sizes or fewer ranks on this machine");
}

TEST_F(TrainErrors, MoreLayersThanThereMayBe) {
  EXPECT_EQ(problem(0, "--model llama --layers 10001"), "--layers is '10001'; it takes a whole number from 1 to 10000");
}

TEST_F(TrainErrors, Settings) {
  EXPECT_EQ(problem(2, "", "KOLO_FUSION_BYTE=1"),
            "KOLO_FUSION_BYTE is no setting; did you mean KOLO_FUSION_BYTES? (--help lists the settings)");
  EXPECT_EQ(problem(0, "", "KOLO_FUSION_BYTES=lots").substr(0, 27), "KOLO_FUSION_BYTES is 'lots'");
  EXPECT_EQ(problem(0, "", "KOLO_BACKEND=nosuch"), "KOLO_BACKEND is 'nosuch'; it takes one of auto, local, shm, mpi");
  EXPECT_EQ(train(folder_, 0, "--sizes 784,10 --steps 0", "KOLO_SHARED_DIR=/nowhere KOLO_TORCH_PYTHON=/nowhere").code,
            0);
}

TEST_F(TrainErrors, ALauncherOfAnotherMpi) {
  EXPECT_EQ(
      problem(0, "", "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMI_SIZE=2"),
      "the launcher started 2 ranks (PMI_SIZE) but MPI sees one (it belongs to another MPI than the one kolo was built "
      "with); start the program with that MPI's own mpirun");
}

TEST_F(TrainErrors, OutputsAreCheckedBeforeTraining) {
  EXPECT_EQ(problem(0, "--log " + path("none/x.jsonl")),
            "cannot write the log DIR/none/x.jsonl (No such file or directory); give --log a file in a folder that is "
            "writable "
            "and has room");
  EXPECT_EQ(problem(0, "--save " + path("none/x.safetensors")),
            "cannot write DIR/none/x.safetensors (No such file or directory); name a file in a folder that is writable "
            "and has "
            "room");
}

/// Whatever is written is nothing else that is written or read, however its path is spelt; and nothing is touched.
TEST_F(TrainErrors, OutputsThatMeetOthersOrInputs) {
  std::filesystem::create_directory(folder_ / "sub");
  for (const std::string name : {"config", "init", "data", "val"}) write_file(folder_ / name, "");
  std::filesystem::create_symlink("init", folder_ / "link");
  std::filesystem::create_hard_link(folder_ / "val", folder_ / "hard");
  const std::string inputs = "--model llama --preset tiny --config " + path("config") + " --init " + path("init") +
                             " --data " + path("data") + " --val " + path("val");
  const std::map<std::string, std::vector<std::string>> spellings{{"config", {"config", "sub/../config"}},
                                                                  {"init", {"./init", "link"}},
                                                                  {"data", {"data", "sub/.././data"}},
                                                                  {"val", {"val", "hard"}}};
  for (const std::string output : {"--log", "--save", "--plot", "--tensorboard", "--checkpoint"}) {
    for (const auto& [input, names] : spellings) {
      for (const std::string& name : names) {
        const std::string said = problem(0, fmt::format("{} {} {}", inputs, output, path(name)));
        EXPECT_TRUE(said.ends_with("give each a file of its own")) << output << ' ' << name << ": " << said;
      }
    }
  }
  for (const std::string name : {"config", "init", "data", "val"}) EXPECT_EQ(read_file(folder_ / name), "");
  const std::vector<std::string> outputs{"--log", "--save", "--plot", "--tensorboard", "--checkpoint"};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = i + 1; j < outputs.size(); ++j) {
      EXPECT_EQ(problem(0, fmt::format("{} {} {} {}", outputs[i], path("new"), outputs[j], path("sub/../new"))),
                fmt::format("{} DIR/new and {} DIR/sub/../new are the same file; give each a file of its own",
                            outputs[i], outputs[j]));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}

TEST_F(TrainErrors, OutputsAmongTheFilesOfAFolderThatIsRead) {
  std::filesystem::create_directories(folder_ / "text");
  write_file(folder_ / "text/a.safetensors", std::string(500, 'a'));
  const std::string read = "--model llama --preset tiny --seq 16 --steps 1 --batch 2 --data " + path("text");
  EXPECT_EQ(problem(0, read + " --save " + path("text/a.safetensors")),
            "--save DIR/text/a.safetensors is a file of --data DIR/text; name another");
  EXPECT_EQ(read_file(folder_ / "text/a.safetensors"), std::string(500, 'a'));
  EXPECT_EQ(train(folder_, 0, read + " --save " + path("a.safetensors")).code, 0);
}

TEST_F(TrainErrors, PromptsWithWordsThatAreNoTokens) {
  write_file(folder_ / "u16", std::string(2000, '\0'));
  const std::string forever =
      "--model llama --preset tiny --seq 16 --steps 1000000000 --sample 5 --tokens u16 --data " + path("u16");
  for (const auto& [prompt, word] :
       {std::pair("17 99999999999", "99999999999"), std::pair("17 -", "-"), std::pair("17 4x 3", "4x")})
    EXPECT_EQ(problem(0, fmt::format("{} --prompt '{}'", forever, prompt)),
              fmt::format("--prompt is '{}', and the tokens are not bytes, but '{}' is no number of one; give their "
                          "numbers, such as '17 4', or --tokenizer",
                          prompt, word));
}

/// The folder of --save is replaced as a whole.
TEST_F(TrainErrors, InputsInTheFolderThatIsWritten) {
  std::filesystem::create_directories(folder_ / "x/deep");
  std::filesystem::create_directory_symlink("x", folder_ / "link");
  const std::string llama = "--model llama --preset tiny --steps 1 ";
  for (const std::string name : {"x/model.safetensors", "x/deep/tokenizer.json", "link/a"}) {
    write_file(folder_ / name, "# input\n");
    for (const std::string input : {"--config", "--init", "--data", "--val", "--tokenizer"}) {
      EXPECT_EQ(
          problem(0, fmt::format("{} {} {} --save {}", llama, input, path(name), path("x"))),
          fmt::format("{} DIR/{} is in the folder of --save DIR/x, which is replaced as a whole; name another folder",
                      input, name));
    }
    EXPECT_EQ(read_file(folder_ / name), "# input\n");
  }
}

/// What training does not take for text is none to learn from; bytes that are no UTF-8 are.
TEST_F(TrainErrors, ATokenizerOfFilesThatAreNoText) {
  std::filesystem::create_directories(folder_ / "text");
  write_file(folder_ / "text/a", "the wind and the sea \xff\xfe and the wind");
  const std::string make = "tokenizer --vocab 260 --data " + path("text") + " --out " + path("out");
  write_file(folder_ / "text/b.gz", std::string("\x1f\x8b\x08\0\0\0\0\0", 8));
  EXPECT_EQ(problem(0, make), "cannot use DIR/text/b.gz (it is no text, and has no header); give a file of text");
  std::filesystem::remove(folder_ / "text/b.gz");
  const std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (1,), }";
  write_file(folder_ / "text/b.npy",
             fmt::format("\x93NUMPY\x01{0}{1}{0}{2}xy", '\0', static_cast<char>(header.size()), header));
  EXPECT_EQ(problem(0, make), "cannot use DIR/text/b.npy (it is no text: its header says u16); give a file of text");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  std::filesystem::remove(folder_ / "text/b.npy");
  EXPECT_EQ(train(folder_, 0, make).code, 0);
}

/// Neither the file under way nor an older one is text to learn from.
TEST_F(TrainErrors, ATokenizerMadeInTheFolderOfItsText) {
  std::filesystem::create_directories(folder_ / "text");
  const std::string make = "tokenizer --vocab 260 --data " + path("text") + " --out " + path("text");
  write_file(folder_ / "text/tokenizer.json", "{}");
  EXPECT_EQ(problem(0, make),
            "--data DIR/text has no text but DIR/text/tokenizer.json, which is written; give other files");
  EXPECT_EQ(read_file(folder_ / "text/tokenizer.json"), "{}");
  write_file(folder_ / "text/a", "the wind and the sea and the wind");
  std::string made;
  for (int time = 0; time < 2; ++time) {
    const auto done = train(folder_, 0, make);
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_NE(done.out.find(" tokens of 33 bytes in 1 file"), done.out.npos) << done.out;
    const std::string now = read_file(folder_ / "text/tokenizer.json");
    EXPECT_TRUE(time == 0 || now == made);
    made = now;
  }
}

TEST_F(TrainErrors, AFullDiskUnderTheLog) {
  const std::string full =
      "cannot write the log /dev/full (No space left on device); give --log a file in a folder that is writable and "
      "has room";
  EXPECT_EQ(problem(2, "--sizes 784,10 --log /dev/full --save " + path("x.safetensors")), full);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x.safetensors"));
  EXPECT_EQ(problem(0, "--sizes 784,10 --steps 1 --log /dev/full"), full);
}

TEST_F(TrainErrors, APipeThatNobodyReadsUnderTheLog) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(problem(2, "--sizes 784,10 --log " + path("pipe")),
            "cannot write the log DIR/pipe (nobody reads this pipe); give --log a file in a folder that is writable "
            "and has room");
  const std::string read = fmt::format("timeout 60 cat {} >{} & ", path("pipe"), path("read"));
  const std::string run = kolo_train(0) + " --sizes 784,10 --steps 3 --log " + path("pipe");
  EXPECT_EQ(run_shell(folder_, read + "sleep 0.2; " + run + "; wait").code, 0);
  EXPECT_EQ(events_in(folder_ / "read", "step").size(), 3u);
}

TEST_F(TrainErrors, AFullDiskUnderTheSavedFile) {
  write_file(folder_ / "x.safetensors", "older");
  const auto done = run_shell(folder_, fmt::format("ulimit -f 32; {} --sizes 784,128,10 --steps 2 --save {}",
                                                   kolo_train(0), path("x.safetensors")));
  EXPECT_EQ(only_problem(done),
            "cannot write DIR/x.safetensors (File too large); name a file in a folder that is writable and has room");
  EXPECT_EQ(read_file(folder_ / "x.safetensors"), "older");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 4);  // and stdout, stderr, command
}

TEST_F(TrainErrors, Divergence) {
  EXPECT_EQ(problem(2, "--sizes 784,16,10 --lr 1e30 --save " + path("x.safetensors")).substr(0, 29),
            "the loss is not finite at ste");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x.safetensors"));
}

/// Its loss and its gradients are finite; what it leaves is not.
TEST_F(TrainErrors, DivergenceInTheLastStep) {
  const std::string flags = "--sizes 784,16,10 --lr 1e39 --steps 1 --every 1 --checkpoint " + path("c") + " --save ";
  EXPECT_EQ(
      problem(2, flags + path("x.safetensors")),
      "the parameters, or the optimizer's state, are not finite behind step 0 (the training diverged); try an --lr "
      "below 1e+39");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x.safetensors"));
  EXPECT_TRUE(checkpoints_in(folder_ / "c").empty());
}

/// A problem on one rank only ends all of them with that rank's words.
TEST_F(TrainErrors, OneRankAlone) {
  const std::string flags = "--sizes 784,10 --steps 1 ";
  EXPECT_EQ(only_problem(run_shell(folder_, fmt::format("{} {} : -np 1 '{}' {} --data {}", kolo_train(1), flags,
                                                        KOLO_TRAIN, flags, path("none")))),
            "cannot read DIR/none (No such file or directory); name a folder with MNIST's IDX files");
}

TEST_F(TrainErrors, RanksWithDifferentFlagsAreNamed) {
  const std::string program = fmt::format("'{}' --sizes 784,10 --steps 1", KOLO_TRAIN);
  const auto done = run_shell(
      folder_, fmt::format("{} --sizes 784,10 --steps 1 --seed 4 : -np 3 {} : -np 1 {} --seed 4 : -np 1 {} --seed 9",
                           kolo_train(1), program, program, program));
  EXPECT_EQ(only_problem(done),
            "the ranks have different values of --seed (ranks 0, 4: 4; ranks 1-3: 1; rank 5: 9); give all of them the "
            "same");
}

/// IDX files of `count` digits.
class FewDigits {
 public:
  FewDigits(const TempFolder& folder, std::uint8_t count, char shade)
      : path_(folder / (std::string("digits") + shade)) {
    std::filesystem::create_directories(path_);
    std::string labels{0, 0, 8, 1, 0, 0, 0, static_cast<char>(count)};
    for (std::uint8_t i = 0; i < count; ++i) labels += static_cast<char>(i % 10);
    write_file(path_ / "t10k-labels-idx1-ubyte", labels);
    write_file(path_ / "t10k-images-idx3-ubyte", idx_images(8, count, count * 784u - 1u) + shade);
  }
  std::string flag() const { return fmt::format("--data '{}' ", path_.string()); }

 private:
  std::filesystem::path path_;
};

TEST_F(TrainErrors, RanksWithDifferentDataAreNamed) {
  const FewDigits one(folder_, 20, 'a'), other(folder_, 20, 'b');
  const std::string program = fmt::format("'{}' --sizes 784,10 --steps 1", KOLO_TRAIN);
  const std::string problem =
      only_problem(run_shell(folder_, fmt::format("{} --sizes 784,10 --steps 1 {} : -np 1 {} {}", kolo_train(1),
                                                  one.flag(), program, other.flag())));
  EXPECT_TRUE(problem.starts_with("the ranks have different values of --data (rank 0: checksum ")) << problem;
  EXPECT_NE(problem.find("DIR/digitsb"), problem.npos) << problem;
}

TEST_F(TrainErrors, ABatchLargerThanTheTrainingSet) {
  const FewDigits few(folder_, 20, 'a');
  EXPECT_EQ(problem(0, few.flag() + "--sizes 784,10 --steps 1 --batch 17"),
            "--batch is 17, but there are only 16 examples to train on; give at most as many");
  EXPECT_EQ(train(folder_, 0, few.flag() + "--sizes 784,10 --steps 1 --batch 16").code, 0);
  EXPECT_EQ(train(folder_, 0, few.flag() + "--sizes 784,10 --steps 1").code, 0) << "the default is cut";
}

TEST_F(TrainErrors, NothingHeldOutIsSaid) {
  const FewDigits few(folder_, 4, 'a');
  const auto done = train(folder_, 2, few.flag() + "--sizes 784,10 --steps 2 --log " + path("log"));
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_NE(done.out.find("\neval      none: the data are too few to hold any out\n"), done.out.npos) << done.out;
  EXPECT_EQ(events_in(folder_ / "log", "step").size(), 2u);
  EXPECT_EQ(events_in(folder_ / "log", "eval").size(), 0u);
}

TEST_F(TrainErrors, ParametersThatAreNotFinite) {
  std::vector<float> weight(7840, 0.5f), bias(10, 0);
  weight[17] = std::numeric_limits<float>::quiet_NaN();
  weight[4711] = -std::numeric_limits<float>::infinity();
  const std::vector<models::NamedValues> tensors{{"layers.0.bias", {10}, bias}, {"layers.0.weight", {10, 784}, weight}};
  models::write_safetensors(folder_ / "a", tensors);
  EXPECT_EQ(problem(0, "--steps 1 --init " + path("a")),
            "DIR/a holds numbers that are infinite or NaN (2 of the 7840 of 'layers.0.weight'); give a file of "
            "sound parameters");
}

TEST_F(TrainErrors, StdoutThatTakesNothing) {
  const std::string advice = "; let it go to a terminal, a file with room, or /dev/null";
  const std::string run =
      kolo_train(0) + " --sizes 784,10 --steps 3 --save " + path("x.safetensors") + " --log " + path("log");
  const std::string full = "cannot write to stdout (No space left on device)" + advice;
  EXPECT_EQ(only_problem(run_shell(folder_, run + " >/dev/full")), full);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "x.safetensors"));
  std::filesystem::remove(folder_ / "x.safetensors");
  EXPECT_EQ(only_problem(run_shell(folder_, "set -o pipefail; " + run + " | true")),
            "cannot write to stdout (Broken pipe)" + advice);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "x.safetensors"));
  EXPECT_EQ(events_in(folder_ / "log", "eval").size(), 1u);
  EXPECT_EQ(only_problem(run_shell(folder_, kolo_train(0) + " --help >/dev/full")), full);
}

TEST_F(TrainErrors, BytesThatAreNoTextAreEscaped) {
  EXPECT_EQ(problem(0, "--data $'no\\x1b[31m\\xc3\\xa9\\xff\\x7f'"),
            "cannot read no\\x1b[31m\xc3\xa9\\xff\\x7f (No such file or directory); name a folder with MNIST's IDX "
            "files");
  EXPECT_LT(problem(0, "--model $(head -c 100000 /dev/zero | tr '\\0' x)").size(), 2100u);
}

}  // namespace
}  // namespace kolo::testing
