// Runs an exported model on a ring of nodes: client WEIGHTS NODES WIDTH
// rustc client.rs -l dylib=:model.so -L FOLDER -C link-arg=-Wl,-rpath,FOLDER
use std::ffi::{c_char, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Tensor { data: *const c_void, dtype: i32, ndim: i32, sizes: *const i64, strides: *const i64 }
#[repr(C)]
struct Output { data: *mut c_void, nbytes: i64, dtype: i32, ndim: i32, sizes: [i64; 8] }
#[repr(C)]
struct Error { status: i32, argument: i32, position: i64, numbers: [i64; 3], message: [c_char; 488] }

extern "C" {
    fn gw_model_open_version(major: i32, weights: *const c_char, model: *mut *mut c_void, error: *mut Error) -> i32;
    fn gw_model_run(model: *const c_void, inputs: *const Tensor, outputs: *mut Output, options: *const c_void,
                    error: *mut Error) -> i32;
    fn gw_model_close(model: *mut c_void);
    fn gw_free(data: *mut c_void);
}

const FLOAT32: i32 = 0;
const INT64: i32 = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (nodes, width): (i64, i64) = (arguments[2].parse().unwrap(), arguments[3].parse().unwrap());
    let x: Vec<f32> = (0..nodes * width).map(|i| (i % 7) as f32 - 3.0).collect();
    let edges: Vec<i64> = (0..nodes).chain((0..nodes).map(|v| (v + 1) % nodes)).collect();
    let (of_x, of_edges) = ([nodes, width], [2, nodes]);
    let inputs = [
        Tensor { data: x.as_ptr().cast(), dtype: FLOAT32, ndim: 2, sizes: of_x.as_ptr(), strides: null() },
        Tensor { data: edges.as_ptr().cast(), dtype: INT64, ndim: 2, sizes: of_edges.as_ptr(), strides: null() },
    ];
    let weights = CString::new(arguments[1].as_str()).unwrap();
    let mut error = Error { status: 0, argument: -1, position: -1, numbers: [0; 3], message: [0; 488] };
    let mut out = Output { data: null_mut(), nbytes: 0, dtype: 0, ndim: 0, sizes: [0; 8] };
    let mut model = null_mut();
    unsafe {
        if gw_model_open_version(1, weights.as_ptr(), &mut model, &mut error) != 0
            || gw_model_run(model, inputs.as_ptr(), &mut out, null(), &mut error) != 0
        {
            panic!("{}", CStr::from_ptr(error.message.as_ptr()).to_string_lossy());
        }
        let numbers = std::slice::from_raw_parts(out.data.cast::<f32>(), (out.nbytes / 4) as usize);
        numbers.iter().for_each(|number| println!("{number}"));
        gw_free(out.data);
        gw_model_close(model);
    }
}
