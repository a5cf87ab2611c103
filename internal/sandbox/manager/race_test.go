//go:build race

package manager

// raceDetected says that everything takes several times as long.
const raceDetected = true
