// What FlashInfer's own bindings call for a mask by k and for a nucleus, without tvm-ffi: built and loaded by peers.py.
#include <flashinfer/air_top_p.cuh>
#include <flashinfer/sampling.cuh>

extern "C" int top_k_mask(float* logits, float* masked, int batch, int k, int vocab, void* states, void* stream) {
  auto rows = static_cast<flashinfer::sampling::RadixRowState*>(states);
  return flashinfer::sampling::RadixTopKMaskLogitsMultiCTA<float, int>(logits, masked, nullptr, batch, k, vocab, rows,
                                                                      static_cast<cudaStream_t>(stream));
}

extern "C" int top_p_renorm(float* probs, float* renormed, int batch, float p, int vocab, void* workspace,
                            void* stream) {
  return flashinfer::sampling::air_top_p::AirTopPRenormProb<true, float>(probs, renormed, nullptr, batch, p, vocab,
                                                                        workspace, static_cast<cudaStream_t>(stream));
}
