// A global that is computed when the library is loaded.
extern "C" float compute(int);

float table[4] = {compute(0), compute(1), compute(2), compute(3)};
