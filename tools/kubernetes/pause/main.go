// Pause is the process of a pod's sandbox: it waits for a signal, and reaps nothing, since a
// sandbox of the tests has no other process.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
