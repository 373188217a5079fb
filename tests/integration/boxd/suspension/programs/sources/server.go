// Counts requests in memory. Goroutines that produce garbage and a ticker go on beside it.
package main

import (
	"fmt"
	"math/rand"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

var garbage atomic.Pointer[[]byte]

func main() {
	if os.Args[1] == "version" {
		fmt.Println(runtime.Version())
		return
	}
	var count, ticks, work atomic.Int64
	nonce := rand.Float64()
	for range 4 {
		go func() {
			for {
				block := make([]byte, 100_000)
				garbage.Store(&block)
				work.Add(1)
				time.Sleep(time.Millisecond)
			}
		}()
	}
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			ticks.Add(1)
		}
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"pid": %d, "nonce": %v, "count": %d, "ticks": %d, "work": %d}`,
			os.Getpid(), nonce, count.Add(1), ticks.Load(), work.Load())
	})
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
