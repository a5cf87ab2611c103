//go:build !race

package manager

const raceDetected = false
